"""The node agent: plays the kubelet of all Nodes of a local cluster, with processes instead of containers."""

"""Limits of the Kubernetes API, limits of texts that we keep and show, and names that all parts share."""

from __future__ import annotations

from typing import Final

CONTROLLER_NAMESPACE: Final = "workload-variant-autoscaler-system"
"""Namespace of Modelyard's own ConfigMaps and Jobs, unless another is configured."""
LONGEST_LABEL: Final = 63
"""Characters of a label's value, and of the name of a Service or a namespace."""
LONGEST_NAME: Final = 253
"""Characters of the name of any other object."""
LARGEST_INTEGER: Final = 2**31 - 1
"""Largest ``int32``, such as the replicas of a workload."""
TERMINATION_MESSAGE_BYTES: Final = 4096
"""Bytes of a container's termination message."""
LONGEST_MESSAGE: Final = 2000
"""Characters of the message of a condition or an error; the API allows 32,768, which nobody can read."""
LONGEST_PROBLEM: Final = 1000
"""Characters of one problem of an object: its field names and values may be as long as a tenant likes."""
LONGEST_MODEL_NAME: Final = 256
"""Characters of the name by which clients ask for a model."""

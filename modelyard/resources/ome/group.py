"""API group and version of OME's resources."""

OME = "ome.io/v1beta1"

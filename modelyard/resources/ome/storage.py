"""Where model files, datasets and results are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from modelyard.resources.base import Part
from modelyard.resources.fields import RawObject, StringMap, optional

StorageUri = Annotated[str, Field(pattern=r"^(oci|hf|pvc|vendor|local|s3|az|gs|github)://.+")]
"""The nine kinds of storage; the grammar of each is checked where it is read."""


class StorageSpec(Part):
    """A place for files, and how to reach it."""

    path: str | None = optional(
        "Absolute directory on the node that the files go to. Default: made from the storage URI."
    )
    schema_path: str | None = optional("Kept for compatibility; without effect.")
    parameters: StringMap | None = optional(
        "Settings of the storage: region and auth (oci), token and secretKey (hf), and others."
    )
    key: str | None = optional("Name of the Secret with the credentials.")
    storage_uri: StorageUri = Field(
        description="Where the files are: oci://n/NAMESPACE/b/BUCKET/o/PATH, hf://MODEL[@REVISION],"
        " pvc://[NAMESPACE:]CLAIM/PATH, s3://BUCKET[@REGION][/PREFIX], gs://BUCKET[/PATH],"
        " az://ACCOUNT/CONTAINER[/PATH], github://OWNER/REPO[@TAG], local:///PATH or vendor://VENDOR/TYPE/PATH."
    )
    node_selector: StringMap | None = optional("Labels a node must carry to receive the files.")
    node_affinity: RawObject | None = optional("Which nodes receive the files; only the required part counts.")

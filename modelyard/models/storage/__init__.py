"""Storage of models as values: URIs, parameters, settings, errors, and safe paths below a folder. Pure."""

from modelyard.models.storage import settings, storage_parameters
from modelyard.models.storage.beneath import Beneath, folders_above, parts
from modelyard.models.storage.errors import FetchError, unavailable, unexpected
from modelyard.models.storage.settings import (
    CA_FILE,
    CONFIG_MAP,
    KEY,
    LOCAL_IMAGE,
    AllowedHosts,
    DeliverySettings,
    internal,
    read,
    read_settings,
)
from modelyard.models.storage.storage_parameters import BUCKETS, StorageUse, source_uri, storage_warnings
from modelyard.models.storage.transfer_rate import REQUEST_BYTES, TransferWindow, time_limit
from modelyard.models.storage.uri import (
    CLAIM,
    Bucket,
    ClaimFolder,
    GitHubRelease,
    HubModel,
    LocalFolder,
    StorageURI,
    VendorModel,
    cache_path,
    check_bucket,
    is_account,
    is_region,
    kthena_model_path,
    overlap,
    parse,
)
from modelyard.models.storage.weight_sets import NoSuchWeights, choose_weights

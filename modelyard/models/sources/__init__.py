"""Sources of model files: list them at a fixed revision, and read byte ranges."""

from modelyard.models.sources.buckets import open_store
from modelyard.models.sources.http import CHUNK, TOKEN_LIMIT, HttpPool
from modelyard.models.sources.source import (
    LISTING_BYTES,
    MOST_FILES,
    MOST_PAGES,
    Chunk,
    Credentials,
    Listing,
    ListingBudget,
    ModelSource,
    RangesIgnored,
    SourceFile,
    bounded,
    check_address,
    check_host,
    checked_endpoint,
    open_source,
)

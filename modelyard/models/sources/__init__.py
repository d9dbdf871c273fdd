"""Sources of model files: list them at a fixed revision, and read byte ranges."""

from modelyard.models.sources.source import LISTING_BYTES as LISTING_BYTES
from modelyard.models.sources.source import MOST_FILES as MOST_FILES
from modelyard.models.sources.source import MOST_PAGES as MOST_PAGES
from modelyard.models.sources.source import Chunk as Chunk
from modelyard.models.sources.source import Credentials as Credentials
from modelyard.models.sources.source import Listing as Listing
from modelyard.models.sources.source import ListingBudget as ListingBudget
from modelyard.models.sources.source import ModelSource as ModelSource
from modelyard.models.sources.source import RangesIgnored as RangesIgnored
from modelyard.models.sources.source import SourceFile as SourceFile
from modelyard.models.sources.source import bounded as bounded
from modelyard.models.sources.source import check_address as check_address
from modelyard.models.sources.source import check_host as check_host
from modelyard.models.sources.source import checked_endpoint as checked_endpoint
from modelyard.models.sources.source import open_source as open_source

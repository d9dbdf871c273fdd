"""Finding, downloading and building the programs a local cluster consists of."""

from modelyard.local.binaries import genai_bench
from modelyard.local.binaries.obtain import SERVERS, ensure, locate

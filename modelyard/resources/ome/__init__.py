"""``ome.io/v1beta1``: models, serving runtimes, inference services and benchmarks.

Source: the published ome.io/v1beta1 reference. It marks many fields as required that the system itself does not
require; which, and why, is listed with the tests of the CRDs.
"""

from modelyard.resources.ome.benchmarks import (
    SCENARIO_PATTERN,
    SCENARIOS_OF_TASK,
    BenchmarkJob,
    BenchmarkJobSpec,
    Endpoint,
)
from modelyard.resources.ome.models import (
    BaseModel,
    BaseModelSpec,
    ClusterBaseModel,
    FineTunedWeight,
    FineTunedWeightSpec,
    ModelFormat,
    ModelFrameworkSpec,
    StorageSpec,
)
from modelyard.resources.ome.older_form import (
    FIELDS,
    MAIN,
    REPLACED,
    WORKERS,
    engine_config,
    engine_spec,
    ignored_fields,
    main_container,
    older_form_remarks,
    replaced,
)
from modelyard.resources.ome.pods import Container, PodFields
from modelyard.resources.ome.runtimes import (
    ClusterServingRuntime,
    ServingRuntime,
    ServingRuntimeSpec,
    SupportedModelFormat,
)
from modelyard.resources.ome.services import InferenceService, InferenceServiceSpec, KnativeCondition, ModelSpec

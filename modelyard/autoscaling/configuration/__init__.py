"""Settings of a fleet, of one VariantAutoscaling by annotation, and the ConfigMaps of the decision. Pure."""

from modelyard.autoscaling.configuration.config_maps import (
    DEFAULT_ENTRY,
    ConfigMaps,
    Document,
    Entry,
    ObjectNotice,
    Remarks,
    entry_subject,
    find,
    look_alikes,
    read_document,
    saturation_names,
    zero_names,
)
from modelyard.autoscaling.configuration.files import PlanInputError, documents, one_document
from modelyard.autoscaling.configuration.handling import (
    ACTUATION,
    COMPATIBILITY,
    MAX_REPLICAS,
    MIN_REPLICAS,
    Handling,
    fleet_handling,
    handling_of,
)
from modelyard.autoscaling.configuration.settings import Compatibility, FleetSettings, Mode, SizingAim

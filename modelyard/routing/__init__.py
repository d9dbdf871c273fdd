"""ModelRoutes and ModelServers: what is said of them in their statuses, and what a router decides, without sockets."""

from modelyard.routing import errors, sharing, tokens
from modelyard.routing.admission import RequestCapacity, Reservation, client_of
from modelyard.routing.body import BodySummary, Connector, Segment, find_segments, likely_model, summarize
from modelyard.routing.configuration import AuthSettings, FairnessSettings, RouterConfiguration, read_configuration
from modelyard.routing.decide import (
    PATHS,
    Arrival,
    Calls,
    Decider,
    Forward,
    Question,
    copied_bytes,
    most_attempts,
    pause,
)
from modelyard.routing.errors import ErrorAnswer, is_retriable, overloaded, queue_timeout, unauthorized, unknown_model
from modelyard.routing.explain import explain
from modelyard.routing.fleet import FleetChange, NameSources, RoutedFleet
from modelyard.routing.gateway_api import Gateway, render
from modelyard.routing.lifecycle import RouteStatus, ServerStatus
from modelyard.routing.limits import Budget, OverBudget, TokenBucket, TokenLimits
from modelyard.routing.model_names import bindings_wanted, records_wanted
from modelyard.routing.name_records import NameRecords
from modelyard.routing.objects import ROUTES, SERVERS, Route, Server, route, server
from modelyard.routing.plugins import Configuration
from modelyard.routing.rolling import MEMORY, ROLLED_OUT, WISH, RouteReading, RouteRollOut, RouteWatch
from modelyard.routing.route_roll_out import RouteRollOuts, RouteStanding
from modelyard.routing.schedule import UNREACHABLE_AFTER, Attempt, EngineGauges, RoutedPod, average
from modelyard.routing.seams import Left, NotServed, Principal
from modelyard.routing.table import Destination, RouteTable
from modelyard.routing.usage import SLICE, STREAMS, Charge, CountedAnswer, answer_reader, charge
from modelyard.routing.user_queue import UserQueue

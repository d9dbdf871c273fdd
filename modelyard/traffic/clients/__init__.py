"""Clients that send the requests of a trace to engines, and measure the answers."""

from modelyard.traffic.clients.replay import (
    Replay,
    ReplaySettings,
    RequestFailed,
    RequestResult,
    chat_body,
    columns,
    open_session,
    send,
)

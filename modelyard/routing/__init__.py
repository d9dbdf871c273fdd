"""ModelRoutes and ModelServers: what is said of them in their statuses, and what a router decides, without sockets."""

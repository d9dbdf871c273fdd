"""ModelRoutes and ModelServers: what can be said of them from routes, servers and pods alone, without a data plane."""

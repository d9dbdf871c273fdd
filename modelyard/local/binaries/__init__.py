"""Finding, downloading and building the programs a local cluster consists of."""

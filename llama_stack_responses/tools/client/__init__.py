"""Tools that the client runs: their declarations as functions of the model."""

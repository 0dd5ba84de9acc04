"""The verbs, one to a module; each module's ``command`` is the verb."""

"""Trained models at work: model cards, predictions over many inputs, the HTTP server."""

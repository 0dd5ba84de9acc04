"""Recurrent layers: the steps of sequences one behind the other, without Python between them."""

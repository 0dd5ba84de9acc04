"""The facts about the layer types of the catalogue, one file for each family of them."""

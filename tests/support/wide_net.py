"""A net of which the batch takes most of the memory."""

NET = """
name: "wide"
layer { name: "data" type: "Input" top: "data" top: "label"
        input_param { shape { dim: 4 dim: 4096 } shape { dim: 4 } } }
layer { name: "tanh" type: "TanH" bottom: "data" top: "tanh" }
layer { name: "ip" type: "InnerProduct" bottom: "tanh" top: "ip"
        inner_product_param { num_output: 16 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

"""The fields of ``multibox_loss_param``: how objects are given to priors, and which count.

Source: SSD (weiliu89/caffe), ``src/caffe/proto/caffe.proto``.
"""

from __future__ import annotations

import math

from demitasse.io.proto import MultiBoxLossParameter, PriorBoxParameter
from demitasse.layers.checks import conflict, out_of_range, positive
from demitasse.layers.detection.assignment import Assigner
from demitasse.layers.detection.coding import BoxCode
from demitasse.layers.detection.mining import Mining, Nms

__all__ = ["assigner_of", "mining_of"]


def assigner_of(p: MultiBoxLossParameter) -> Assigner:
    """Return what gives objects to priors.

    Raises:
        ConfigError: A field has a value it cannot have.
    """
    classes = positive(p.num_classes, "multibox_loss_param.num_classes")
    background, logistic = p.background_label_id, p.conf_loss_type == MultiBoxLossParameter.LOGISTIC
    if not logistic and background >= classes:
        expected = f"one of the {classes} classes, with conf_loss_type SOFTMAX"
        raise out_of_range("multibox_loss_param.background_label_id", background, expected)
    if p.map_object_to_agnostic and background + 1 >= classes:
        expected = f"at least {background + 2}: map_object_to_agnostic needs a foreground class"
        raise out_of_range("multibox_loss_param.num_classes", classes, expected)
    return Assigner(
        classes=classes,
        background=background,
        shared=p.share_location,
        code=BoxCode(PriorBoxParameter.CodeType.Name(p.code_type), p.encode_variance_in_target),
        threshold=None if p.match_type == MultiBoxLossParameter.BIPARTITE else p.overlap_threshold,
        inside=p.ignore_cross_boundary_bbox,
        by_prediction=not p.use_prior_for_matching,
        inside_only=p.bp_inside,
        agnostic=p.map_object_to_agnostic,
        several=logistic,
    )


def mining_of(p: MultiBoxLossParameter) -> Mining | None:
    """Return how priors are chosen, or None where all count.

    Raises:
        ConfigError: A field has a value it cannot have, or mining is asked for without
            ``share_location``.
    """
    mined = p.mining_type != MultiBoxLossParameter.NONE
    if p.HasField("do_neg_mining") and p.do_neg_mining != mined:
        name = MultiBoxLossParameter.MiningType.Name(p.mining_type)
        message = (
            f"multibox_loss_param.do_neg_mining and mining_type {name} contradict each other; "
            "remove do_neg_mining"
        )
        raise conflict("multibox_loss_param.do_neg_mining", message)
    if not mined:
        return None
    if not p.share_location:
        message = (
            "multibox_loss_param.mining_type needs share_location; set mining_type: NONE, or "
            "remove share_location"
        )
        raise conflict("multibox_loss_param.mining_type", message)
    if not 0 <= p.neg_pos_ratio < math.inf:
        raise out_of_range(
            "multibox_loss_param.neg_pos_ratio", p.neg_pos_ratio, "a number from 0 on"
        )
    hard = p.mining_type == MultiBoxLossParameter.HARD_EXAMPLE
    nms = None
    if p.HasField("nms_param") and p.nms_param.nms_threshold > 0:
        top_k = p.nms_param.top_k if p.nms_param.HasField("top_k") else -1
        nms = Nms(p.nms_param.nms_threshold, top_k)
    count = positive(p.sample_size, "multibox_loss_param.sample_size") if hard else 0
    return Mining(hard, p.neg_pos_ratio, p.neg_overlap, count, nms)

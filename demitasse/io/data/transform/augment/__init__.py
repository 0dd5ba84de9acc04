"""What SSD's fields of ``transform_param`` do to images before they are cut out and centred."""

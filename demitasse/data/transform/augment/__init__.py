"""What SSD's fields of ``transform_param`` do to pictures before they are cut out and centred."""

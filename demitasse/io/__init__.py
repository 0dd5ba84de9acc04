"""Files: messages and text (``proto``), weights (``weights``), records and images (``data``)."""

"""`mgap inspect`: a web page that shows what the prior does, token by token. Layout and events only; the maths is further left."""

"""`mgap inspect`: a web page that shows what the prior does, token by token. Layout and events; no maths."""

-- Reads the gates of one place. Follows gatelist.lua.
-- Reply {version, list}; the version is empty where there are no gates | {}: what stands there is no gate
if foreign then return {} end
return {version or '', listed()}

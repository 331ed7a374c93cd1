// profile_cache.h: profiles of this machine, kept in the user's cache folder.
#ifndef ATSI_PLANNER_PROFILE_CACHE_H
#define ATSI_PLANNER_PROFILE_CACHE_H

#include "formats/device_profile.h"

// The file for the machine that `profile` names (processors, threads, driver, version of this program):
// $XDG_CACHE_HOME/atsi/profile-HASH.json, or ~/.cache/atsi/... Returns memory from malloc, NULL when there is no such folder to use.
char *atsi_profile_cache_path(const struct atsi_device_profile *profile);

// Replaces *profile by the stored one when there is a sound one of the same machine; else leaves it. Never fails: a
// damaged cache is as good as none.
void atsi_profile_cache_load(const char *path, struct atsi_device_profile *profile);
// Writes the file; ATSI_FAILED when its folder is not there.
enum atsi_status atsi_profile_save(const char *path, const struct atsi_device_profile *profile, struct atsi_error *err);
// The same, and makes the folders on the way to it.
enum atsi_status atsi_profile_cache_save(const char *path, const struct atsi_device_profile *profile,
                                         struct atsi_error *err);

#endif

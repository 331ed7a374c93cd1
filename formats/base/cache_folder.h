// cache_folder.h: files that a program keeps for later runs in the user's cache folder. Whoever reads them takes a damaged one for none.
#ifndef ATSI_FORMATS_BASE_CACHE_FOLDER_H
#define ATSI_FORMATS_BASE_CACHE_FOLDER_H

#include <stdint.h>

#include "formats/base/error.h"

// $XDG_CACHE_HOME/atsi/NAME, or ~/.cache/atsi/NAME. Returns memory from malloc, NULL when there is no such folder to use.
char *atsi_cache_path(const char *name);
// Writes such a file, and makes the folders on the way to it.
enum atsi_status atsi_cache_write(const char *path, const void *data, uint64_t size_bytes, struct atsi_error *err);

// For who reads such a file and writes it again: until atsi_cache_unlock nobody else who asks gets the folder of `path`, which is made. Waits
// for five seconds at most. -1 when it cannot be had: whoever goes on may lose what another program writes meanwhile.
int atsi_cache_lock(const char *path);
void atsi_cache_unlock(int lock); // -1 fine

#endif

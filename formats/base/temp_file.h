// temp_file.h: new files and folders whose names nobody else has, under $TMPDIR, else /tmp. Whoever makes one removes it.
#ifndef ATSI_FORMATS_BASE_TEMP_FILE_H
#define ATSI_FORMATS_BASE_TEMP_FILE_H

#include "formats/base/error.h"

enum {
    ATSI_TEMP_PATH_CAP = 128
};

// Empty, for this user alone. ATSI_FAILED naming what cannot be made, also where $TMPDIR is too long.
enum atsi_status atsi_temp_file(char path[ATSI_TEMP_PATH_CAP], struct atsi_error *err);
enum atsi_status atsi_temp_folder(char path[ATSI_TEMP_PATH_CAP], struct atsi_error *err);

#endif

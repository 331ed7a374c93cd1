// backend.h: the two sides that a unit can run on.
#ifndef ATSI_FORMATS_BACKEND_H
#define ATSI_FORMATS_BACKEND_H

enum atsi_backend {
    ATSI_CPU = 0,
    ATSI_GPU = 1
};

#endif

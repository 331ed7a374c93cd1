// version.h: the version of both programs.
#ifndef ATSI_FORMATS_VERSION_H
#define ATSI_FORMATS_VERSION_H

#define ATSI_VERSION "0.1.0"

#endif

// matmul_type_list.h: X_KERNEL, a file of a tile's kernel, once for every packed tile16 type. With X the type's name in matmul_types.h:
//     X_BYTES      bytes of its tile's block
//     X_SUBS       sub-blocks of 32 columns in a block: 1 or 8
//     X_OFFSET     what X_word gives above the true weight
//     X_GROUP      columns that share a scale: 32 or 16
//     X_MINS       MINS_NONE, MINS_FLOAT (one for 32 columns) or MINS_PAIR (Q2_K)
//     X_WIDE       1 when weights need all 8 bits (v_dot_wide)
//     X_RUN        words whose 16-bit pair sums cannot overflow: 2 * 127 * largest weight * X_RUN < 2^15
//     X_JOINT      sub-blocks that share words and so are done together for one token: 1, 2 or 4
// The file ends with matmul_type_end.h.
#ifndef ATSI_KERNELS_CPU_MATMUL_TYPE_LIST_H
#define ATSI_KERNELS_CPU_MATMUL_TYPE_LIST_H

#include "kernels/cpu/matmul_types.h"
#include "kernels/layout.h"

// Without VNNI sums of pairs stand between words and dots: there sub-blocks are done one by one.
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
#define JOINT(n) n
#else
#define JOINT(n) 1
#endif

#define X        q8_0
#define X_BYTES  ATSI_TILE_Q8_0_BYTES
#define X_SUBS   1
#define X_OFFSET WIDE_OFFSET
#define X_GROUP  32
#define X_MINS   MINS_NONE
#define X_WIDE   1
#define X_RUN    1
#define X_JOINT  1
#include X_KERNEL

#define X        q4_0
#define X_BYTES  ATSI_TILE_Q4_0_BYTES
#define X_SUBS   1
#define X_OFFSET 8
#define X_GROUP  32
#define X_MINS   MINS_NONE
#define X_WIDE   0
#define X_RUN    8
#define X_JOINT  1
#include X_KERNEL

#define X        q4_1
#define X_BYTES  ATSI_TILE_Q4_1_BYTES
#define X_SUBS   1
#define X_OFFSET 0
#define X_GROUP  32
#define X_MINS   MINS_FLOAT
#define X_WIDE   0
#define X_RUN    8
#define X_JOINT  1
#include X_KERNEL

#define X        q5_0
#define X_BYTES  ATSI_TILE_Q5_0_BYTES
#define X_SUBS   1
#define X_OFFSET 16
#define X_GROUP  32
#define X_MINS   MINS_NONE
#define X_WIDE   0
#define X_RUN    4
#define X_JOINT  1
#include X_KERNEL

#define X        q5_1
#define X_BYTES  ATSI_TILE_Q5_1_BYTES
#define X_SUBS   1
#define X_OFFSET 0
#define X_GROUP  32
#define X_MINS   MINS_FLOAT
#define X_WIDE   0
#define X_RUN    4
#define X_JOINT  1
#include X_KERNEL

#define X        iq4_nl
#define X_BYTES  ATSI_TILE_IQ4_NL_BYTES
#define X_SUBS   1
#define X_OFFSET WIDE_OFFSET
#define X_GROUP  32
#define X_MINS   MINS_NONE
#define X_WIDE   1
#define X_RUN    1
#define X_JOINT  1
#include X_KERNEL

#define X        mxfp4
#define X_BYTES  ATSI_TILE_MXFP4_BYTES
#define X_SUBS   1
#define X_OFFSET 12
#define X_GROUP  32
#define X_MINS   MINS_NONE
#define X_WIDE   0
#define X_RUN    4
#define X_JOINT  1
#include X_KERNEL

#define X        q2_k
#define X_BYTES  ATSI_TILE_Q2_K_BYTES
#define X_SUBS   8
#define X_OFFSET 0
#define X_GROUP  16
#define X_MINS   MINS_PAIR
#define X_WIDE   0
#define X_RUN    4
#define X_JOINT  JOINT(4)
#include X_KERNEL

#define X        q3_k
#define X_BYTES  ATSI_TILE_Q3_K_BYTES
#define X_SUBS   8
#define X_OFFSET 4
#define X_GROUP  16
#define X_MINS   MINS_NONE
#define X_WIDE   0
#define X_RUN    4
#define X_JOINT  JOINT(4)
#include X_KERNEL

#define X        q4_k
#define X_BYTES  ATSI_TILE_Q4_K_BYTES
#define X_SUBS   8
#define X_OFFSET 0
#define X_GROUP  32
#define X_MINS   MINS_FLOAT
#define X_WIDE   0
#define X_RUN    8
#define X_JOINT  JOINT(2)
#include X_KERNEL

#define X        q5_k
#define X_BYTES  ATSI_TILE_Q5_K_BYTES
#define X_SUBS   8
#define X_OFFSET 0
#define X_GROUP  32
#define X_MINS   MINS_FLOAT
#define X_WIDE   0
#define X_RUN    4
#define X_JOINT  JOINT(2)
#include X_KERNEL

#define X        q6_k
#define X_BYTES  ATSI_TILE_Q6_K_BYTES
#define X_SUBS   8
#define X_OFFSET 32
#define X_GROUP  16
#define X_MINS   MINS_NONE
#define X_WIDE   0
#define X_RUN    2
#define X_JOINT  JOINT(4)
#include X_KERNEL

#define X        iq4_xs
#define X_BYTES  ATSI_TILE_IQ4_XS_BYTES
#define X_SUBS   8
#define X_OFFSET WIDE_OFFSET
#define X_GROUP  32
#define X_MINS   MINS_NONE
#define X_WIDE   1
#define X_RUN    1
#define X_JOINT  1
#include X_KERNEL

// TYPE(its name in enum atsi_dtype without ATSI_, X) for each of them.
#define TILE16_TYPES(TYPE) \
    TYPE(Q8_0, q8_0)       \
    TYPE(Q4_0, q4_0)       \
    TYPE(Q4_1, q4_1)       \
    TYPE(Q5_0, q5_0)       \
    TYPE(Q5_1, q5_1)       \
    TYPE(IQ4_NL, iq4_nl)   \
    TYPE(MXFP4, mxfp4)     \
    TYPE(Q2_K, q2_k)       \
    TYPE(Q3_K, q3_k)       \
    TYPE(Q4_K, q4_k)       \
    TYPE(Q5_K, q5_k)       \
    TYPE(Q6_K, q6_k)       \
    TYPE(IQ4_XS, iq4_xs)

#endif

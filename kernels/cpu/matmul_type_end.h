// matmul_type_end.h: the end of what matmul_type_list.h says of a type (no include guard).
#undef X
#undef X_BYTES
#undef X_SUBS
#undef X_OFFSET
#undef X_GROUP
#undef X_MINS
#undef X_WIDE
#undef X_RUN
#undef X_JOINT

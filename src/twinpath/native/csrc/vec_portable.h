// Sixteen floats in plain C++. Included inside the including unit's own namespace.
#pragma once

struct V {
    float v[16];
};

constexpr int kAttendRows = 4;  // query rows that share a converted key
constexpr int kAttendKeys = 1;  // key tiles in flight
constexpr int kAttendDims = 2;  // value registers in flight
constexpr int kAttendSums = 8;  // rows times tiles in flight at most
constexpr int kMaxTokenTile = 4;

#define TP_EACH for (int i = 0; i < 16; ++i)

inline V vload(const float* p) { V r; TP_EACH r.v[i] = p[i]; return r; }
inline void vstore(float* p, V a) { TP_EACH p[i] = a.v[i]; }
inline V vset(float x) { V r; TP_EACH r.v[i] = x; return r; }
inline V vzero() { return vset(0.0f); }
inline V vadd(V a, V b) { TP_EACH a.v[i] += b.v[i]; return a; }
inline V vsub(V a, V b) { TP_EACH a.v[i] -= b.v[i]; return a; }
inline V vmul(V a, V b) { TP_EACH a.v[i] *= b.v[i]; return a; }
inline V vdiv(V a, V b) { TP_EACH a.v[i] /= b.v[i]; return a; }
// a * b + c; two roundings here, one where the hardware fuses.
inline V vfma(V a, V b, V c) { TP_EACH c.v[i] += a.v[i] * b.v[i]; return c; }
inline V vmax(V a, V b) { TP_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline V vmin(V a, V b) { TP_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
// Nearest integer, ties to even, |a| < 2^22.
inline V vround(V a) {
    TP_EACH { volatile float t = a.v[i] + 12582912.0f; a.v[i] = t - 12582912.0f; }
    return a;
}
// a * 2^n for integral n in [-126, 127].
inline V vscale2(V a, V n) {
    TP_EACH {
        union { int32_t i; float f; } u;
        u.i = (static_cast<int32_t>(n.v[i]) + 127) << 23;
        a.v[i] *= u.f;
    }
    return a;
}
inline float vsum(V a) {
    for (int w = 8; w; w /= 2) for (int i = 0; i < w; ++i) a.v[i] += a.v[i + w];
    return a.v[0];
}
inline float vtop(V a) {
    for (int i = 1; i < 16; ++i) a.v[0] = a.v[i] > a.v[0] ? a.v[i] : a.v[0];
    return a.v[0];
}
// Lanes lo <= i < hi of a, else those of b.
inline V vkeep(V a, V b, int lo, int hi) { TP_EACH a.v[i] = i >= lo && i < hi ? a.v[i] : b.v[i]; return a; }

inline V vload_f16(const uint16_t* p) { V r; TP_EACH r.v[i] = half_to_float(p[i]); return r; }
inline void vstore_f16(uint16_t* p, V a) { TP_EACH p[i] = float_to_half(a.v[i]); }
inline V vload_bf16(const uint16_t* p) {
    V r;
    TP_EACH {
        union { uint32_t i; float f; } u;
        u.i = static_cast<uint32_t>(p[i]) << 16;
        r.v[i] = u.f;
    }
    return r;
}

#undef TP_EACH

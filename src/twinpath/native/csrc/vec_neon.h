// Sixteen floats as four NEON registers. Included inside the including unit's own namespace.
#pragma once

struct V {
    float32x4_t a, b, c, d;
};

constexpr int kAttendRows = 4;  // query rows that share a converted key: 16 sums, 4 keys, 1 query of 32 registers
constexpr int kAttendKeys = 1;  // key tiles in flight
constexpr int kAttendDims = 1;  // value registers in flight
constexpr int kAttendSums = 4;  // rows times tiles in flight at most
constexpr int kMaxTokenTile = 4;
#define TP_DENSE_TILES 2  // outputs of a dense tile: eight registers each

inline V vload(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
inline void vstore(float* p, V x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
inline V vset(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline V vzero() { return vset(0.0f); }

#define TP_LIFT(name, op) \
    inline V name(V x, V y) { return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)}; }
TP_LIFT(vadd, vaddq_f32)
TP_LIFT(vsub, vsubq_f32)
TP_LIFT(vmul, vmulq_f32)
TP_LIFT(vdiv, vdivq_f32)
TP_LIFT(vmax, vmaxq_f32)
TP_LIFT(vmin, vminq_f32)
#undef TP_LIFT

inline V vfma(V x, V y, V z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}

inline V vround(V x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d)}; }

// x * 2^n for integral n in [-126, 127].
inline float32x4_t scale2(float32x4_t x, float32x4_t n) {
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
inline V vscale2(V x, V n) { return {scale2(x.a, n.a), scale2(x.b, n.b), scale2(x.c, n.c), scale2(x.d, n.d)}; }

inline float vsum(V x) { return vaddvq_f32(vaddq_f32(vaddq_f32(x.a, x.b), vaddq_f32(x.c, x.d))); }
inline float vtop(V x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

// Lanes lo <= first + i < hi of x, else those of y.
inline float32x4_t keep(float32x4_t x, float32x4_t y, int first, int lo, int hi) {
    const int32_t count[4] = {0, 1, 2, 3};
    const int32x4_t lane = vaddq_s32(vld1q_s32(count), vdupq_n_s32(first));
    return vbslq_f32(vandq_u32(vcgeq_s32(lane, vdupq_n_s32(lo)), vcltq_s32(lane, vdupq_n_s32(hi))), x, y);
}
inline V vkeep(V x, V y, int lo, int hi) {
    return {keep(x.a, y.a, 0, lo, hi), keep(x.b, y.b, 4, lo, hi), keep(x.c, y.c, 8, lo, hi), keep(x.d, y.d, 12, lo, hi)};
}

inline float32x4_t load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline void store_f16(uint16_t* p, float32x4_t x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
inline float32x4_t load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline V vload_f16(const uint16_t* p) { return {load_f16(p), load_f16(p + 4), load_f16(p + 8), load_f16(p + 12)}; }
inline V vload_bf16(const uint16_t* p) { return {load_bf16(p), load_bf16(p + 4), load_bf16(p + 8), load_bf16(p + 12)}; }
inline void vstore_f16(uint16_t* p, V x) {
    store_f16(p, x.a);
    store_f16(p + 4, x.b);
    store_f16(p + 8, x.c);
    store_f16(p + 12, x.d);
}

// fp16 conversions in plain C++. Included inside the including unit's own namespace.
#pragma once

inline float half_to_float(uint16_t h) {
    union { uint32_t i; float f; } u, magic;
    u.i = static_cast<uint32_t>(h & 0x7fff) << 13;
    magic.i = 113u << 23;
    const uint32_t exponent = u.i & (0x7c00u << 13);
    u.i += (127u - 15u) << 23;
    if (exponent == (0x7c00u << 13)) {
        u.i += (128u - 16u) << 23;  // infinity, not-a-number
    } else if (exponent == 0) {
        u.i += 1u << 23;  // zero, subnormal
        u.f -= magic.f;
    }
    u.i |= static_cast<uint32_t>(h & 0x8000) << 16;
    return u.f;
}

inline uint16_t float_to_half(float x) {  // nearest even, as the hardware does
    union { uint32_t i; float f; } u, subnormal;
    u.f = x;
    const uint32_t sign = u.i & 0x80000000u;
    u.i ^= sign;
    uint32_t h;
    if (u.i >= (143u << 23)) {
        h = u.i > (255u << 23) ? 0x7e00u : 0x7c00u;
    } else if (u.i < (113u << 23)) {
        subnormal.i = 126u << 23;
        u.f += subnormal.f;
        h = u.i - subnormal.i;
    } else {
        const uint32_t odd = (u.i >> 13) & 1;
        u.i += (static_cast<uint32_t>(15 - 127) << 23) + 0xfff + odd;
        h = u.i >> 13;
    }
    return static_cast<uint16_t>(h | (sign >> 16));
}

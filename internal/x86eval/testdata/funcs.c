// Functions of many shapes, to be compiled in several ways and evaluated both on
// the processor and by interpretation.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef int64_t i64;
typedef uint32_t u32;

struct node { u64 key; const struct node *next; u32 small; uint8_t flag; int16_t half; };
struct wide { u64 a[8]; u32 b[6]; char text[24]; };
struct shape { u64 (*area)(const struct shape *, u64); u64 w, h; };

static const struct node n3 = {7, 0, 70, 1, -7}, n2 = {5, &n3, 50, 0, 55}, n1 = {3, &n2, 30, 1, -300},
	n0 = {1, &n1, 10, 0, 9};
static const struct wide wides[4] = {
	{{1, 2, 3, 4, 5, 6, 7, 8}, {9, 8, 7, 6, 5, 4}, "the quick brown fox"},
	{{~0ull, 1ull << 63, 3, 99, 0, 6, 77, 8}, {0xffffffff, 8, 7, 0x80000000, 5, 4}, "jumps"},
	{{11, 12, 13, 14, 15, 16, 17, 18}, {1, 2, 3, 4, 5, 6}, "over the lazy"},
	{{0}, {0}, ""},
};
static u64 rect(const struct shape *s, u64 k) { return s->w * s->h + k; }
static u64 tri(const struct shape *s, u64 k) { return s->w * s->h / 2 ^ k; }
static u64 line(const struct shape *s, u64 k) { return s->w + k; }
const struct shape shapes[3] = {{rect, 3, 4}, {tri, 5, 6}, {line, 7, 8}};

#define F(name) __attribute__((noinline, visibility("default"))) u64 name(u64 a, u64 b, u64 c)

F(f00) { return a + b * c - (a ^ b); }
F(f01) { return b ? a / b + a % b : c; }
F(f02) { i64 x = a, y = b | 1; return y == -1 ? -a : (u64)(x / y) ^ (u64)(x % y); }
F(f03) { return (u32)a / ((u32)b | 1) + (u32)c % 1000; }
F(f04) { return (u64)(((unsigned __int128)a * b) >> 64) + c; }
F(f05) { return (u64)(((__int128)(i64)a * (i64)b) >> 37) ^ c; }
F(f06) { return (u64)((((unsigned __int128)a << 64 | b) + c) >> (c & 127)); }
F(f07) { unsigned __int128 x = (unsigned __int128)a << 64 | b; return (u64)(x / (c | 1) >> 3); }
F(f08) { return a << (b & 63) | a >> (c & 63); }
F(f09) { b &= 63; return b ? a << b | a >> (64 - b) : a; }
F(f10) { return (u64)((i64)a >> (b & 63)) + (u64)(int8_t)c + (uint8_t)(a >> 8); }
F(f11) { return __builtin_popcountll(a) + 100 * __builtin_popcount((u32)b) + c; }
F(f12) { return __builtin_ctzll(a | 1ull << 63) + 100 * __builtin_clzll(b | 1) + (c & -c); }
F(f13) { return __builtin_bswap64(a) ^ __builtin_bswap32((u32)b) ^ __builtin_bswap16((uint16_t)c); }
F(f14)
{
	switch (a % 9) {
	case 0: return b + c;
	case 1: return b - c;
	case 2: return b * c;
	case 3: return b ^ c;
	case 4: return b & ~c;
	case 5: return (b << 7) + (c >> 3);
	case 6: return b < c ? b : c;
	case 7: return b == c;
	}
	return b | c;
}
F(f15) { u64 s = 0; for (u64 i = 0; i < a % 100; i++) s = s * 31 + (i ^ b); return s + c; }
F(f16) { u64 s = 0; for (const struct node *n = &n0; n; n = n->next) s = s * 3 + n->key + n->small + n->flag * b + n->half; return s ^ a ^ c; }
F(f17) { struct wide w = wides[a % 4]; w.a[b % 8] += c; u64 s = 0; for (int i = 0; i < 8; i++) s = s * 7 + w.a[i]; return s; }
F(f18) { struct wide w, v; memcpy(&w, &wides[a % 4], sizeof w); v = w; v.b[b % 6] ^= (u32)c; u64 s = 0; for (int i = 0; i < 6; i++) s += (u64)v.b[i] << (i * 5); return s + v.text[3]; }
F(f19) { u64 s = 0; for (int i = 0; i < 3; i++) s = s * 5 + shapes[(a + i) % 3].area(&shapes[i], b); return s + c; }
F(f20) { u32 v[32]; for (int i = 0; i < 32; i++) v[i] = (u32)(a + i * b); u32 s = 0; for (int i = 0; i < 32; i++) s += v[i] ^ (u32)c; return s; }
F(f21) { u64 v[16], m = 0; for (int i = 0; i < 16; i++) v[i] = a ^ (b >> i); for (int i = 0; i < 16; i++) m += v[i] > c ? v[i] : 1; return m; }
F(f22) { uint8_t v[64]; for (int i = 0; i < 64; i++) v[i] = (uint8_t)(a >> (i & 7)) + i; u32 n = 0; for (int i = 0; i < 64; i++) n += v[i] == (uint8_t)b; return n + c; }
F(f23) { int16_t v[24]; for (int i = 0; i < 24; i++) v[i] = (int16_t)(a * i); i64 s = 0; for (int i = 0; i < 24; i++) s += v[i] * (int16_t)b; return (u64)s + c; }
F(f24) { char t[64]; memset(t, (int)(a & 0x7f) | 1, sizeof t); t[b % 60] = 0; return strlen(t) + 100 * (memcmp(t, wides[0].text, 8) < 0) + c; }
F(f25) { u64 *p = malloc(64), s; for (int i = 0; i < 8; i++) p[i] = a + i; s = p[b % 8] * c; free(p); return s; }
F(f26) { return a < 2 ? a + c : a % 16 < 2 ? b : f26(a % 16 - 1, b, c) + f26(a % 16 - 2, c, b); }
F(f27) { return (a > b) + 2 * ((i64)a > (i64)b) + 4 * ((u32)a <= (u32)c) + 8 * ((int16_t)b < (int16_t)c) + 16 * ((int8_t)a >= (int8_t)b); }
F(f28) { u64 r; return __builtin_mul_overflow(a, b, &r) ? ~c : r; }
F(f29) { i64 r; return __builtin_add_overflow((i64)a, (i64)b, &r) ? c : (u64)r; }
F(f30) { u32 r; return __builtin_sub_overflow((u32)a, (u32)b, &r) ? c : r; }
F(f31)
{
	static u64 n;
	u64 old = __atomic_fetch_add(&n, a, 5);
	old += __atomic_fetch_or(&n, b, 5) + __atomic_exchange_n(&n, c, 5);
	__atomic_fetch_sub(&n, c - 1, 5);
	return old + __atomic_fetch_and(&n, 0, 5);
}
F(f32) { u64 x = a; __atomic_compare_exchange_n(&x, &b, c, 0, 5, 5); return x ^ b; }
F(f33) { double x = (double)(i64)a, y = (double)(u32)b + 1; double q = x / y + (double)(u32)c; return q > 1e18 || q < -1e18 ? 1 : (u64)(i64)q; }
F(f34) { float x = (float)(u32)a * 0.5f, y = (float)(i64)(b | 1); return x > y ? (u64)(u32)(x / 3) : c + (x + y < 0); }
F(f35) { double lf = (double)(a | 1) / (double)(b | 1); return lf > 1.0 ? c : (u64)(lf * 1000); }
F(f36) { u64 h = 14695981039346656037ull; const char *p = wides[a % 4].text; for (; *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211ull; return h ^ b ^ c; }
F(f37) { u64 t[8]; for (int i = 0; i < 8; i++) t[i] = i * a; for (int i = 0; i < 8; i++) for (int j = i + 1; j < 8; j++) if (t[j] < t[i]) { u64 x = t[i]; t[i] = t[j]; t[j] = x; } return t[b % 8] + c; }
F(f38) { return (a & 1 ? b : c) + (a >> 1 & 1 ? b * 3 : c * 5) + ((a & (1ull << (b & 63))) != 0); }
F(f39) { return (a & ~b) + ((c - 1) & c) + (c & (c ^ (c - 1))) + ((a >> (b & 31)) & ((1ull << (c & 31)) - 1)); }
F(f40) { struct { u64 x, y, z, w; } s = {a, b, c, a}, t = s; __asm__("" : "+m"(t)); return t.x * 3 + t.y * 5 + t.z * 7 + t.w; }
F(f41) { i64 v[12]; for (int i = 0; i < 12; i++) v[i] = (i64)(a << i) >> (i + 3); i64 m = v[0]; for (int i = 1; i < 12; i++) m = v[i] > m ? v[i] : m; return (u64)m + b + c; }
F(f42) { uint16_t v[40]; for (int i = 0; i < 40; i++) v[i] = (uint16_t)(a >> (i % 13)); u64 s = 0; for (int i = 0; i < 40; i++) s += (u64)v[i] * (uint8_t)b; return s + c; }
F(f43) { u64 s = 0; for (u64 x = a; x; x >>= 4) s = s * 10 + x % 10; return s / 1000000007 + b % 97 + c / 10; }

// Paths as a library joins them, and a use of their components.
#include <cstring>
#include <filesystem>

using std::filesystem::path;

static size_t give(const path& p, char* out) {
    std::memcpy(out, p.c_str(), p.native().size());
    return p.native().size();
}

extern "C" size_t join_paths(const char* a, const char* b, const char* c, char* out) {
    path p = path(a) / b;
    p /= path(c);
    path q = p;
    q /= std::string_view(b);
    q += c;
    return give(q, out);
}

extern "C" size_t parent_path(const char* a, const char*, const char*, char* out) { return give(path(a).parent_path(), out); }

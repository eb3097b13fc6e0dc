#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "hpcdl/core/error.h"
#include "tools/verify/isolate.h"
#include "tools/verify/subject.h"

namespace hpcdl::lab::verify {
namespace {

constexpr std::uint32_t kMost = 512;
constexpr std::uint32_t kDTypes = HPCDL_TAKES_F32 | HPCDL_TAKES_BF16 | HPCDL_TAKES_F16,
                        kFlags = HPCDL_IN_PLACE | HPCDL_SAME_BITS_ANY_THREADS | HPCDL_BITS_MAY_VARY;

/// The description of a library, from the child that loaded it.
struct Listing {
  struct Entry {
    char contract[64], name[128];
    std::uint32_t dtypes, flags;
    std::int32_t device_kind;
    bool runs;
  };
  std::uint64_t beat;
  std::uint32_t abi, count;
  char error[400];
  Entry kernels[kMost];
};

template <std::size_t N> void copy_text(char (&to)[N], const char* from) {
  if (from) std::strncpy(to, from, N - 1);
}

const hpcdl_kernel_table* load(const std::string& path, std::string* error) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle ? ::dlsym(handle, "hpcdl_kernels") : nullptr;
  if (!symbol) {
    const char* why = ::dlerror();
    *error = why ? why : "hpcdl_kernels is null";
    return nullptr;
  }
  const auto* table = reinterpret_cast<const hpcdl_kernel_table* (*)()>(symbol)();
  if (!table) *error = "hpcdl_kernels() returned NULL";
  return table;
}

void list(const std::string& path, Listing& l) {
  std::string error;
  const auto* table = load(path, &error);
  copy_text(l.error, error.c_str());
  if (!table) return;
  l.abi = table->abi;
  if (l.abi != HPCDL_KERNEL_ABI) return;
  l.count = table->count;
  for (std::uint32_t i = 0; i < std::min(l.count, kMost); ++i) {
    const auto& k = table->kernels[i];
    auto& e = l.kernels[i];
    copy_text(e.contract, k.contract);
    copy_text(e.name, k.name);
    e.dtypes = k.dtypes, e.flags = k.flags, e.device_kind = k.device_kind, e.runs = k.run != nullptr;
  }
}

}  // namespace

std::vector<Subject> library_kernels(const std::string& file) {
  namespace fs = std::filesystem;
  require(fs::exists(file), "verify", "{}: no such file", file);
  const std::string path = fs::absolute(file).string();  // without a slash dlopen would search other folders
  const SharedMemory memory(sizeof(Listing));
  auto& l = *memory.as<Listing>();
  Child child([&] { list(path, l); }, &l.beat, std::chrono::seconds(20));
  child.wait();
  require(child.failure().empty(), "verify", "{}: loading it {}", file, child.failure());
  require(l.error[0] == 0, "verify", "{}: expected a shared library that exports hpcdl_kernels (kernel_abi.h): {}",
          file, l.error);
  require(l.abi == HPCDL_KERNEL_ABI, "verify",
          "{}: expected version {} of kernel_abi.h, found {}: compile it against this one", file, HPCDL_KERNEL_ABI,
          l.abi);
  require(l.count > 0 && l.count <= kMost, "verify", "{}: expected 1 to {} kernels, found {}", file, kMost, l.count);
  std::vector<Subject> subjects;
  for (std::uint32_t i = 0; i < l.count; ++i) {
    const auto& e = l.kernels[i];
    require(e.contract[0] && e.name[0] && e.runs && e.dtypes, "verify",
            "{}: kernel {} lacks a contract, a name, dtypes or run", file, i);
    require(!(e.dtypes & ~kDTypes) && !(e.flags & ~kFlags) &&
                (e.device_kind == HPCDL_ON_CPU || e.device_kind == HPCDL_ON_CUDA),
            "verify",
            "{}: kernel {} ({}) has dtypes {:#x}, flags {:#x} and device_kind {}, but some of these bits are not "
            "defined in kernel_abi.h",
            file, i, e.name, e.dtypes, e.flags, e.device_kind);
    subjects.push_back({e.contract, e.name, e.dtypes, e.flags, e.device_kind, [path, i]() -> const hpcdl_kernel& {
                          std::string error;
                          const auto* table = load(path, &error);
                          require(table != nullptr, "verify", "{}: {}", path, error);
                          return table->kernels[i];
                        }});
  }
  return subjects;
}

}  // namespace hpcdl::lab::verify

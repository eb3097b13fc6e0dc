#if HPCDL_NCCL

#include "hpcdl/comm/nccl/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::comm::nccl {
namespace {

void* open_library() {
  if (const char* path = std::getenv("HPCDL_NCCL_LIBRARY")) {
    void* handle = ::dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    require(handle != nullptr, "comm", "the library that HPCDL_NCCL_LIBRARY names cannot be loaded: {}",
            handle ? "" : ::dlerror());
    return handle;
  }
  for (const char* name : {"libnccl.so.2", "libnccl.so"})
    if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return handle;
  fail("comm",
       "the loader does not find libnccl.so.2: install NCCL 2.18 or newer, or name its file in HPCDL_NCCL_LIBRARY");
}

Library load() {
  void* handle = open_library();
  const auto find = [&]<class F>(F& f, const char* name) {
    f = reinterpret_cast<F>(::dlsym(handle, name));
    require(f != nullptr, "comm", "this NCCL lacks {}: install 2.18 or newer", name);
  };
  Library l{};
  find(l.get_version, "ncclGetVersion");
  find(l.get_unique_id, "ncclGetUniqueId");
  find(l.error_string, "ncclGetErrorString");
  find(l.last_error, "ncclGetLastError");
  find(l.init_rank, "ncclCommInitRankConfig");
  find(l.async_error, "ncclCommGetAsyncError");
  find(l.finalize, "ncclCommFinalize");
  find(l.destroy, "ncclCommDestroy");
  find(l.end, "ncclCommAbort");
  find(l.all_reduce, "ncclAllReduce");
  find(l.reduce_scatter, "ncclReduceScatter");
  find(l.all_gather, "ncclAllGather");
  find(l.broadcast, "ncclBroadcast");
  find(l.send, "ncclSend");
  find(l.receive, "ncclRecv");
  find(l.group_start, "ncclGroupStart");
  find(l.group_end, "ncclGroupEnd");
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map) l.path = map->l_name;
  l.get_version(&l.version);
  require(l.version >= 21800, "comm", "{} is NCCL {}: expected 2.18 or newer", l.path, l.version);
  return l;
}

}  // namespace

const Library& Library::get() {
  static const Library library = load();
  return library;
}

std::string describe(const Library& l) {
  std::vector<std::string> seen;
  for (char** e = environ; *e; ++e)
    if (std::string_view(*e).starts_with("NCCL_")) seen.emplace_back(*e);
  std::sort(seen.begin(), seen.end());
  std::string text =
      fmt::format("NCCL {}.{}.{} ({})", l.version / 10000, l.version / 100 % 100, l.version % 100, l.path);
  for (const auto& s : seen) text += (&s == seen.data() ? ", " : " ") + s;
  return text;
}

}  // namespace hpcdl::comm::nccl

#endif

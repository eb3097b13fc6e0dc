#include "tools/profile/cupti.h"

#if HPCDL_CUPTI

#include <cupti.h>
#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "hpcdl/core/error.h"
#include "tools/shared_library.h"

namespace hpcdl::lab {

namespace {

constexpr std::size_t kBufferBytes = 4 << 20;
constexpr CUpti_ActivityKind kActivities[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                              CUPTI_ACTIVITY_KIND_MEMSET};

/// The functions that are needed, with the types of the header.
struct Api {
  decltype(&cuptiActivityRegisterTimestampCallback) set_clock;
  decltype(&cuptiActivityRegisterCallbacks) set_buffers;
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityFlushAll) flush;
  decltype(&cuptiActivityGetNextRecord) next;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped;
  decltype(&cuptiGetResultString) text;
};

/// CUPTI calls back from its own threads, so the buffers that it fills are global to the process.
struct Store {
  std::mutex mutex;
  Api api{};
  std::vector<DeviceActivity> activities;
  std::size_t dropped = 0;
};
Store& store() {
  static Store s;
  return s;
}

/// Gives "softmax_kernel<float>" for a mangled "void hpcdl::(anonymous namespace)::softmax_kernel<float>(float*, int)".
std::string readable(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                         std::free);
  std::string name = status == 0 && text ? text.get() : mangled;
  for (const std::string_view drop : {"void ", "hpcdl::", "(anonymous namespace)::"})
    for (auto at = name.find(drop); at != name.npos; at = name.find(drop)) name.erase(at, drop.size());
  int depth = 0;  // of angle brackets: parameters of the kernel begin at the first parenthesis outside of them
  for (std::size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (depth == 0 && name[i] == '(') return name.substr(0, i);
  }
  return name;
}

std::string_view interned(const char* name) {
  static std::map<std::string, std::string, std::less<>> seen;  // guarded by the mutex
  if (!name) return "kernel";
  const auto it = seen.find(std::string_view(name));
  return it != seen.end() ? it->second : seen.emplace(name, readable(name)).first->second;
}

std::string_view copy_name(int kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy to the GPU";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy from the GPU";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy on the GPU";
    default: return "copy";
  }
}

template <class T> DeviceActivity activity(const T& a, DeviceSpan::Kind kind, std::string_view name) {
  DeviceActivity out;
  out.span = {static_cast<std::int64_t>(a.start), static_cast<std::int64_t>(a.end), kind, name};
  out.node = a.graphId ? a.graphNodeId : 0, out.correlation = a.correlationId;
  return out;
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0, *most = 0;
}

void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  auto& s = store();
  const std::scoped_lock lock(s.mutex);
  for (CUpti_Activity* r = nullptr; valid > 0 && s.api.next(buffer, valid, &r) == CUPTI_SUCCESS;) {
    if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto& k = *reinterpret_cast<const CUpti_ActivityKernel10*>(r);
      s.activities.push_back(activity(k, DeviceSpan::Kind::kernel, interned(k.name)));
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto& c = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(r);
      s.activities.push_back(activity(c, DeviceSpan::Kind::copy, copy_name(c.copyKind)));
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      s.activities.push_back(
          activity(*reinterpret_cast<const CUpti_ActivityMemset4*>(r), DeviceSpan::Kind::fill, "fill"));
    }
  }
  size_t lost = 0;
  if (s.api.dropped(context, stream, &lost) == CUPTI_SUCCESS) s.dropped += lost;
  std::free(buffer);
}

uint64_t CUPTIAPI clock() { return static_cast<uint64_t>(now_ns()); }

class Loaded : public Cupti {
 public:
  void start() override {
    for (const auto kind : kActivities) check(store().api.enable(kind), "cuptiActivityEnable");
  }
  void stop() override {
    for (const auto kind : kActivities) check(store().api.disable(kind), "cuptiActivityDisable");
  }
  std::vector<DeviceActivity> take(std::size_t& lost) override {
    check(store().api.flush(0), "cuptiActivityFlushAll");
    const std::scoped_lock lock(store().mutex);
    lost = std::exchange(store().dropped, 0);
    return std::exchange(store().activities, {});
  }

 private:
  static void check(CUptiResult status, const char* what) {
    if (status == CUPTI_SUCCESS) return;
    const char* text = nullptr;
    if (store().api.text(status, &text) != CUPTI_SUCCESS || !text) text = "unknown";
    fail("profile", "{}: {}", what, text);
  }
};

}  // namespace

std::unique_ptr<Cupti> Cupti::open(std::string& why) {
  constexpr int kMajor = CUDA_VERSION / 1000;
  const SharedLibrary library({fmt::format("libcupti.so.{}", kMajor)});
  if (!library) return why = fmt::format("the loader does not find libcupti.so.{}", kMajor), nullptr;
  auto& api = store().api;
  const auto find = [&](auto& to, const char* name) {
    return (to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(library.function<void>(name))) != nullptr;
  };
  const bool all = find(api.set_clock, "cuptiActivityRegisterTimestampCallback") &&
                   find(api.set_buffers, "cuptiActivityRegisterCallbacks") && find(api.enable, "cuptiActivityEnable") &&
                   find(api.disable, "cuptiActivityDisable") && find(api.flush, "cuptiActivityFlushAll") &&
                   find(api.next, "cuptiActivityGetNextRecord") &&
                   find(api.dropped, "cuptiActivityGetNumDroppedRecords") && find(api.text, "cuptiGetResultString");
  if (!all) return why = fmt::format("{} is too old", library.path()), nullptr;
  auto loaded = std::make_unique<Loaded>();  // the library stays loaded
  if (api.set_clock(clock) != CUPTI_SUCCESS || api.set_buffers(give_buffer, take_buffer) != CUPTI_SUCCESS)
    return why = "another profiler holds CUPTI", nullptr;
  try {  // a system may deny it to users
    loaded->start();
    loaded->stop();
  } catch (const Error& e) {
    return why = e.what(), nullptr;
  }
  return loaded;
}

}  // namespace hpcdl::lab

#else

namespace hpcdl::lab {

std::unique_ptr<Cupti> Cupti::open(std::string& why) { return why = "this build found no cupti.h", nullptr; }

}  // namespace hpcdl::lab

#endif

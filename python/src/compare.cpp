// The basis of `hpcdl.bench`: the lab's protocol for Python calls, and the lab's cases as arrays that other
// libraries can compute on.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <dlfcn.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <memory>

#include "hpcdl/core/error.h"
#include "hpcdl/simd/isa.h"
#include "python/src/array.h"
#include "python/src/bind.h"
#include "python/src/call.h"
#include "python/src/gpu_kernels.h"
#include "python/src/runtime.h"
#include "tools/cases.h"
#include "tools/compare/gpu_environment.h"
#include "tools/compare/protocol.h"
#include "tools/roof_kernels.h"
#include "tools/tune/session.h"

namespace hpcdl::python {
namespace {

using lab::compare::Cache;
using Json = nlohmann::ordered_json;

lab::Case find_case(const std::string& op, const std::string& shape, const std::string& dtype, bool backward) {
  for (auto& c : lab::cases_at({op}, shape))
    if (c.op == op && lab::dtype_word(c.dtype) == dtype && c.backward == backward) return c;
  fail("bench", "no case {} {} {} {}", op, shape, dtype, backward ? "fwd+bwd" : "fwd");
}

Device device_from(const std::string& name) { return name == "cpu" ? Device::cpu() : device_from_name(name); }

/// Identifies the build of this module: in another build, the kernel of a name may have another speed.
std::string build_name() {
  Dl_info module{};
  ::dladdr(reinterpret_cast<const void*>(&build_name), &module);
  std::error_code unknown;
  const std::filesystem::path file = module.dli_fname ? module.dli_fname : "";
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(file, unknown));
  const auto written =
      static_cast<std::int64_t>(std::filesystem::last_write_time(file, unknown).time_since_epoch().count());
  return fmt::format("python-{}-{:08x}", HPCDL_VERSION, hash_of("build", std::array{bytes, written}) >> 32);
}

/// A case of the lab with its memory, on which inputs and output are arrays. On a GPU it runs on PyTorch's current
/// stream.
class BenchCase {
 public:
  BenchCase(const std::string& op, const std::string& shape, const std::string& dtype, bool backward,
            const std::string& device)
      : device_(device_from(device)),
        mirror_(device_.is_cuda() ? static_cast<std::int64_t>(sizeof(StepParams)) : 0, device_),
        run_(made(find_case(op, shape, dtype, backward))) {}

  void run() const {
#if HPCDL_CUDA
    if (device_.is_cuda()) {
      GpuTurn turn(framework_from_name("torch"), device_, reinterpret_cast<StepParams*>(mirror_.data()));
      if (ways_) turn.stream().set_ways(ways_);
      const nb::gil_scoped_release released;
      return run_.executable().run(turn.stream());  // the step parameters were copied when the case was made
    }
#endif
    const nb::gil_scoped_release released;
    const Turn turn;
    Stream stream(turn.pool());
    run_.run(stream);
  }
  /// Like `hpcdl bench --tune full`: measures the choices that it needs and that are not known for this build, in
  /// at most `seconds`.
  void tune(double seconds) {
    if (!device_.is_cuda()) return;
    const nb::gil_scoped_release released;
    const Turn turn;
    lab::tune::Session session(device_, turn.pool(), lab::tune::Mode::full, build_name(), [](std::string_view) {});
    session.prepare({&run_.executable()}, seconds);
    ways_ = session.ways();
  }
  static nb::dict inputs(nb::object self, const std::string& framework) {
    return arrays(self, framework, SlotKind::input);
  }
  static nb::dict kept(nb::object self, const std::string& framework) {
    return arrays(self, framework, SlotKind::kept);
  }
  double bytes() const { return run_.cost().bytes(); }
  double flops() const { return run_.cost().operations; }

 private:
  lab::CaseRun made(const lab::Case& c) const {
#if HPCDL_CUDA
    if (device_.is_cuda()) {
      GpuTurn turn(framework_from_name("torch"), device_);
      lab::CaseRun run(c, nullptr, &turn.stream());
      cuda::put_params(turn.stream(), reinterpret_cast<StepParams*>(mirror_.data()), run.params());
      return run;
    }
#endif
    return lab::CaseRun(c);
  }
  static nb::dict arrays(const nb::object& self, const std::string& framework, SlotKind kind) {
    const auto& exe = nb::cast<const BenchCase&>(self).run_.executable();
    const Framework f = framework_from_name(framework);
    nb::dict out;
    const auto& slots = exe.program().slots;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const auto offset = exe.plan().offset[i];
      if (slots[i].kind != kind || offset < 0) continue;
      out[slots[i].name.c_str()] =
          view_array(f, self, Tensor(exe.arena()->data() + offset, slots[i].spec, exe.arena()->device()), true);
    }
    return out;
  }
  Device device_;
  Buffer mirror_;                     // of the step parameters, on a GPU
  std::shared_ptr<const Ways> ways_;  // after tune()
  lab::CaseRun run_;
};

/// The module's own threads flush the caches.
class Host : public lab::compare::HostEnvironment {
 public:
  Host() : HostEnvironment(pool()) {}

 private:
  static Pool& pool() {
    const nb::gil_scoped_release released;
    return Turn().pool();
  }
};

lab::compare::Options options_from(const std::string& text) {
  lab::compare::Options o;
  const auto j = Json::parse(text);
  const auto cache = j.value("cache", std::string("warm"));
  require(cache == "warm" || cache == "flushed" || cache == "rotated", "bench",
          "cache must be \"warm\", \"flushed\" or \"rotated\", got \"{}\"", cache);
  o.cache = cache == "warm" ? Cache::warm : cache == "flushed" ? Cache::flushed : Cache::rotated;
  o.rounds = j.value("rounds", o.rounds), o.target = j.value("target", o.target), o.limit = j.value("limit", o.limit);
  o.patience = j.value("patience", o.patience);
  o.half_width = j.value("half_width", o.half_width), o.settle = j.value("settle", o.settle),
  o.seed = j.value("seed", o.seed);
  return o;
}

lab::compare::Result compare_on(const std::vector<lab::compare::Side>& sides, const Device device,
                                const lab::compare::Options& options) {
#if HPCDL_CUDA
  if (device.is_cuda()) {
    GpuTurn turn(framework_from_name("torch"), device);
    lab::compare::GpuEnvironment gpu(turn.stream().pool(), turn.stream());
    return lab::compare::run(sides, gpu, options);
  }
#endif
  static_cast<void>(device);
  Host host;
  return lab::compare::run(sides, host, options);
}

/// `list`: (name, call, units of work in one call).
std::string compare_sides(const nb::list& list, const std::string& options, const std::string& device) {
  std::vector<lab::compare::Side> sides;
  for (nb::handle item : list) {
    const auto side = nb::cast<nb::tuple>(item);
    sides.push_back({.name = nb::cast<std::string>(side[0]),
                     .call = [call = nb::object(side[1])] { call(); },
                     .units = nb::cast<double>(side[2])});
  }
  const auto r = compare_on(sides, device_from(device), options_from(options));
  Json j = {{"cache", r.cache}, {"rounds", r.rounds()}, {"half_width", r.half_width}, {"settled", r.settled}};
  for (const auto& s : r.sides) {
    j["sides"][s.name] = lab::compare::to_json(s.time(), 1e3, "_ms");
    j["sides"][s.name]["calls"] = s.calls;
    j["seconds"][s.name] = s.seconds;
  }
  for (std::size_t i = 1; i < r.sides.size(); ++i)
    j["ratios"][r.sides[i].name] = lab::compare::to_json(r.ratio(r.sides[i].name, r.sides[0].name));
  return j.dump();
}

void copy(nb::handle dst, nb::handle src, bool streaming) {
  Call call("copy");
  const Form any{Type::any, Layout::contiguous};
  const View x = call.in("src", src, any);
  const Tensor y = call.update("dst", dst, any);
  require(x.bytes() == y.bytes() && x.bytes() % 64 == 0, "copy",
          "dst and src must have the same multiple of 64 bytes, got {} and {}", y.bytes(), x.bytes());
  const auto aligned = [](const View& v) { return reinterpret_cast<std::uintptr_t>(v.data()) % 64 == 0; };
  require(!streaming || (aligned(x) && aligned(y)), "copy",
          "a streaming copy needs arrays that begin at a multiple of 64 bytes");
  call.run([&](Stream& s) {
    constexpr std::int64_t kBlock = 768;  // bytes: half of the unit of cpu::sweep()
    const std::int64_t blocks = x.bytes() / kBlock, rest = x.bytes() % kBlock;
    parallel_for(s.pool(), blocks, 128, [&](std::int64_t b, std::int64_t e) {
      std::byte* to = y.ptr<std::byte>() + b * kBlock;
      const std::byte* from = x.ptr<std::byte>() + b * kBlock;
      if (!streaming) return static_cast<void>(std::memcpy(to, from, static_cast<std::size_t>((e - b) * kBlock)));
      simd::with_isa([&](auto isa) {
        cpu::sweep(isa, cpu::Sweep::copy_streaming, reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from),
                   nullptr, (e - b) * kBlock / 2, 1);
      });
    });
    std::memcpy(y.ptr<std::byte>() + blocks * kBlock, x.ptr<std::byte>() + blocks * kBlock,
                static_cast<std::size_t>(rest));
  });
}

}  // namespace

void bind_compare(nb::module_& m) {
  nb::class_<BenchCase>(m, "_BenchCase", "A case of the lab: hpcdl.bench.")
      .def(nb::init<const std::string&, const std::string&, const std::string&, bool, const std::string&>(),
           nb::arg("op"), nb::arg("shape"), nb::arg("dtype"), nb::arg("backward"), nb::arg("device") = "cpu")
      .def_prop_ro("bytes", &BenchCase::bytes)
      .def_prop_ro("flops", &BenchCase::flops)
      .def("run", &BenchCase::run)
      .def("tune", &BenchCase::tune, nb::arg("seconds"))
      .def(
          "inputs",
          [](nb::object self, const std::string& framework) { return BenchCase::inputs(std::move(self), framework); },
          nb::arg("framework"))
      .def(
          "kept",
          [](nb::object self, const std::string& framework) { return BenchCase::kept(std::move(self), framework); },
          nb::arg("framework"));
  m.def(
      "_bench_ops",
      [] {
        nb::list out;
        for (const auto& f : lab::case_families()) out.append(nb::make_tuple(f.op, f.dims));
        return out;
      },
      "(op, meaning of the numbers of its shape) of every kind of case.");
  m.def("_copy", copy, nb::arg("dst"), nb::arg("src"), nb::arg("streaming"), "hpcdl.bench.copy().");
  m.def("_compare", compare_sides, nb::arg("sides"), nb::arg("options"), nb::arg("device"),
        "hpcdl.bench.compare() with JSON in and out.");
}

}  // namespace hpcdl::python

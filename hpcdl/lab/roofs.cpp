#include "hpcdl/lab/roofs.h"

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/lab/machine.h"
#include "hpcdl/lab/roof_kernels.h"

namespace hpcdl::lab {

static void to_json(nlohmann::json& j, const CacheRoof& c) { j = {{"name", c.name}, {"bytes", c.bytes}, {"read", c.read}, {"copy", c.copy}}; }
static void from_json(const nlohmann::json& j, CacheRoof& c) {
  j.at("name").get_to(c.name), j.at("bytes").get_to(c.bytes), j.at("read").get_to(c.read), j.at("copy").get_to(c.copy);
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

/// Best rate of `rounds` runs of f(thread), which returns the work it did: noise only ever slows a machine down.
template <class F> double best_rate(Pool& pool, int rounds, F&& f) {
  std::vector<double> done(static_cast<std::size_t>(pool.threads()) * 8);  // a cache line apart
  double best = 0;
  for (int r = 0; r < rounds; ++r) {
    const auto start = Clock::now();
    pool.run([&](int t) { done[static_cast<std::size_t>(t) * 8] = f(t); });
    const double seconds = seconds_since(start);
    double work = 0;
    for (int t = 0; t < pool.threads(); ++t) work += done[static_cast<std::size_t>(t) * 8];
    best = std::max(best, work / seconds);
  }
  return best;
}

constexpr std::int64_t kRounds = 1'000'000;  // near 2 ms
constexpr int kRepeats = 8;

template <class F> void each(Roofs& r, F&& f) {
  f("f32", r.f32), f("bf16", r.bf16), f("i8", r.i8);
  f("memory_read", r.memory_read), f("memory_copy", r.memory_copy), f("cache_read", r.cache_read), f("cache_bytes", r.cache_bytes);
}

/// Floats per thread that stay within `level` of the caches and do not fit the one before.
std::int64_t floats_within(const std::vector<CacheLevel>& caches, std::size_t level, int threads) {
  const auto per_thread = [&](std::size_t i) { return caches[i].bytes / std::min(caches[i].cpus, threads); };
  const std::int64_t inner = level ? per_thread(level - 1) : 0;
  const std::int64_t bytes = std::min(std::max(per_thread(level) / 4, 2 * inner), per_thread(level) * 3 / 4);
  return std::max<std::int64_t>(bytes / 1024 * 1024, 1024) / 4;
}

std::vector<CacheRoof> measure_caches(Pool& pool, const std::vector<CacheLevel>& caches, float* x, std::int64_t n) {
  std::vector<CacheRoof> list;
  simd::with_isa([&](auto isa) {
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const int sharers = std::min(caches[i].cpus, pool.threads()), instances = (pool.threads() + sharers - 1) / sharers;
      const auto mine = std::min(floats_within(caches, i, pool.threads()), n / pool.threads());
      const int sweeps = static_cast<int>(std::max<std::int64_t>((std::int64_t{8} << 20) / (mine * 4), 2));  // 8 MiB per round
      const auto rate = [&](auto sweep) {
        return best_rate(pool, kRepeats, [&](int t) {
          double bytes = 0;
          for (int s = 0; s < sweeps; ++s) bytes += sweep(x + t * mine);
          return bytes;
        });
      };
      list.push_back({fmt::format("L{}", caches[i].level), static_cast<double>(caches[i].bytes * instances),
                      rate([&](float* p) { return cpu::sweep_read(isa, p, mine); }),
                      rate([&](float* p) { return cpu::sweep_copy_cached(isa, p + mine / 2, p, mine / 2); })});
    }
  });
  return list;
}

}  // namespace

Roofs measure_roofs(Pool& pool) {
  Roofs r;
  const int threads = pool.threads();
  const auto machine = this_machine();
  r.cache_bytes = machine.last_level_cache ? static_cast<double>(machine.last_level_cache) : 32.0 * (1 << 20);
  const std::int64_t n = std::int64_t{32} << 20;  // floats: 128 MiB; half for each side of a copy
  const Buffer buffer(n * 4);
  auto* x = reinterpret_cast<float*>(buffer.data());
  const auto share = [&](std::int64_t total, int t) { return total / 64 * t / threads * 64; };
  // Memory that was never written is one shared page of zeros: reading it would measure the cache.
  pool.run([&](int t) { std::fill(x + share(n, t), x + share(n, t + 1), 1.0f); });
  simd::with_isa([&](auto isa) {
    r.f32 = best_rate(pool, kRepeats, [&](int) { return cpu::spin_f32(isa, kRounds); });
    r.bf16 = best_rate(pool, kRepeats, [&](int) { return cpu::spin_bf16(isa, kRounds); });
    r.i8 = best_rate(pool, kRepeats, [&](int) { return cpu::spin_i8(isa, kRounds); });
    const auto read = [&](std::int64_t total, int sweeps) {
      return best_rate(pool, kRepeats, [&, total, sweeps](int t) {
        const auto begin = share(total, t), end = share(total, t + 1);
        double bytes = 0;
        for (int s = 0; s < sweeps; ++s) bytes += cpu::sweep_read(isa, x + begin, end - begin);
        return bytes;
      });
    };
    r.cache_read = read(static_cast<std::int64_t>(std::min(r.cache_bytes / 8, 4.0 * (1 << 20))) / 4, 16);
    r.caches = measure_caches(pool, machine.caches, x, n);
    r.memory_read = read(n, 1);
    r.memory_copy = best_rate(pool, kRepeats / 2, [&](int t) {
      const auto begin = share(n / 2, t), end = share(n / 2, t + 1);
      return cpu::sweep_copy(isa, x + n / 2 + begin, x + begin, end - begin);
    });
  });
  return r;
}

std::filesystem::path roofs_file(const Pool& pool) {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base = xdg && *xdg ? std::filesystem::path(xdg) : std::filesystem::path(home ? home : "/tmp") / ".cache";
  const auto m = this_machine();
  std::string cpu;
  for (char c : m.cpu) cpu += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return base / "hpcdl" / fmt::format("roofs-{}-{}-{}.json", cpu, m.isa, pool.threads());
}

Roofs roofs(Pool& pool, Remember remember) {
  const auto file = roofs_file(pool);
  Roofs r;
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) try {
      const auto j = io::read_json(file);
      each(r, [&](const char* name, double& value) { value = j.at(name).get<double>(); });
      j.at("caches").get_to(r.caches);
      if (remember == Remember::measured) return r;
    } catch (const std::exception&) {
      r = {};  // a damaged file is measured anew
    }
  Roofs now = measure_roofs(pool);
  nlohmann::json j;
  each(now, [&](const char* name, double& value) { j[name] = value; });
  each(r, [&](const char* name, double& value) { j[name] = value = std::max(value, j[name].get<double>()); });
  if (r.caches.size() == now.caches.size())
    for (std::size_t i = 0; i < now.caches.size(); ++i) {
      now.caches[i].read = std::max(now.caches[i].read, r.caches[i].read);
      now.caches[i].copy = std::max(now.caches[i].copy, r.caches[i].copy);
    }
  j["caches"] = r.caches = now.caches;
  try {
    io::make_folder(file.parent_path());
    io::write_file_atomic(file, j.dump(1) + "\n");
  } catch (const Error&) {
    // a read-only home: the next run measures again
  }
  return r;
}

double speed_of_light(const Program& program, const Record& record, const Roofs& roofs) {
  double peak = roofs.f32;
  for (std::uint32_t i = 0; i < record.operand_count; ++i) {
    const auto d = program.operands[record.operands + i].spec.dtype;
    if (d == DType::bf16) peak = std::max(peak, roofs.bf16);
    else if (d == DType::u8 || d == DType::i8) peak = std::max(peak, roofs.i8);
  }
  const double bandwidth = record.cost.bytes <= roofs.cache_bytes ? std::max(roofs.cache_read, roofs.memory()) : roofs.memory();
  return std::max(record.cost.flops / peak, record.cost.bytes / bandwidth);
}

double speed_of_light(const Program& program, const Roofs& roofs) {
  double sum = 0;
  for (const auto& r : program.records) sum += speed_of_light(program, r, roofs);
  return sum;
}

}  // namespace hpcdl::lab

#include "hpcdl/machine/remembered.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/machine/machine.h"

namespace hpcdl::lab {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t kLimit = 16 << 20;

template <class R, class F> void each(R& r, F&& f) {
  f("f32", r.f32), f("bf16", r.bf16), f("i8", r.i8);
  f("memory_read", r.memory_read), f("memory_copy", r.memory_copy), f("memory_write", r.memory_write),
      f("memory_update", r.memory_update);
  f("cache_read", r.cache_read), f("cache_bytes", r.cache_bytes);
}
/// Fields that may be unknown.
template <class R, class F> void each_optional(R& r, F&& f) { f("tf32", r.tf32), f("launch_seconds", r.launch); }

/// Throws unless the value is a positive, finite number.
double rate(const Json& j) {
  const double x = j.get<double>();
  if (!(x > 0) || !std::isfinite(x)) fail("io", "no rate");
  return x;
}

/// For a level too small, or too large, to be measured alone, or one that a device does not have.
double rate_or_none(const Json& j) { return j.get<double>() == 0 ? 0 : rate(j); }

Json gpu_identity(const GpuIdentity& g) { return {{"name", g.name}, {"uuid", g.uuid}, {"driver", g.driver}}; }

/// The first of a list of objects that matches all of these; null: none.
template <class J> J* entry_of(J& list, const Json& identity) {
  for (auto& entry : list)
    if (entry.is_object() && std::all_of(identity.items().begin(), identity.items().end(), [&](const auto& i) {
          return entry.contains(i.key()) && entry.at(i.key()) == i.value();
        }))
      return &entry;
  return nullptr;
}

Json cpu_identity(const std::string& isa, int threads) { return {{"isa", isa}, {"threads", threads}}; }

/// Adds `more` to the entry of this identity in a list of the file, in place of what it held.
void put(Json& file, const char* list, const Json& identity_of, const Json& more) {
  if (!file.contains("machine")) file["machine"] = identity(this_machine());
  if (!file.contains("roofs")) file["roofs"] = Json::array();
  if (!file.contains(list) || !file[list].is_array()) file[list] = Json::array();
  Json entry = identity_of;
  entry.update(more);
  if (auto* old = entry_of(file[list], identity_of)) *old = std::move(entry);
  else file[list].push_back(std::move(entry));
}

}  // namespace

Roofs roofs_from(const Json& j) {
  Roofs r;
  each(r, [&](const char* name, double& value) { value = rate(j.at(name)); });
  each_optional(r, [&](const char* name, double& value) { value = rate_or_none(j.at(name)); });
  for (const auto& c : j.at("caches"))
    r.caches.push_back({c.at("name").get<std::string>(), rate(c.at("bytes")), rate(c.at("read")), rate(c.at("copy")),
                        rate_or_none(c.at("update"))});
  return r;
}

Json to_json(const Roofs& roofs) {
  Json j;
  const auto put = [&](const char* name, double value) { j[name] = value; };
  each(roofs, put), each_optional(roofs, put);
  j["caches"] = Json::array();
  for (const auto& c : roofs.caches)
    j["caches"].push_back(
        {{"name", c.name}, {"bytes", c.bytes}, {"read", c.read}, {"copy", c.copy}, {"update", c.update}});
  return j;
}

std::filesystem::path cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      xdg && *xdg ? std::filesystem::path(xdg) : std::filesystem::path(home && *home ? home : "/tmp") / ".cache";
  return base / "hpcdl";
}

std::filesystem::path probe_file() {
  const auto m = this_machine();
  std::string cpu;
  for (const char c : m.cpu.empty() ? std::string("unknown") : m.cpu)
    cpu += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return cache_folder() / fmt::format("{}-{}cpus-{}", cpu, m.cpus_online, m.isa_best) / "probe.json";
}

Json read_remembered() {
  const auto file = probe_file();
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return Json::object();
  try {
    const auto text = io::read_file(file, kLimit);
    io::parse_json(text, file.string());  // duplicate keys, depth
    auto j = Json::parse(text);
    if (j.is_object() && j.at("machine") == Json(identity(this_machine())) && j.at("roofs").is_array()) return j;
  } catch (const std::exception&) {
    // damaged: measured again
  }
  return Json::object();
}

void write_remembered(const Json& file) {
  const auto path = probe_file();
  io::make_folder(path.parent_path());
  io::write_file_atomic(path, file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::optional<Roofs> find_roofs(const Json& file, const std::string& isa, int threads) try {
  const auto* entry = entry_of(file.at("roofs"), cpu_identity(isa, threads));
  return entry ? std::optional(with_parts(roofs_from(*entry), isa)) : std::nullopt;
} catch (const std::exception&) {
  return std::nullopt;
}

void put_roofs(Json& file, const std::string& isa, int threads, const Roofs& roofs) {
  put(file, "roofs", cpu_identity(isa, threads), to_json(roofs));
}

std::optional<Roofs> find_gpu_roofs(const Json& file, const GpuIdentity& gpu) try {
  const auto* entry = entry_of(file.at("gpu_roofs"), gpu_identity(gpu));
  return entry ? std::optional(roofs_from(*entry)) : std::nullopt;
} catch (const std::exception&) {
  return std::nullopt;
}

void put_gpu_roofs(Json& file, const GpuIdentity& gpu, const Roofs& roofs) {
  put(file, "gpu_roofs", gpu_identity(gpu), to_json(roofs));
}

void keep_gpu_roofs(Json& file, const Json& entry) try {
  GpuIdentity gpu;
  gpu.name = entry.at("name").get<std::string>(), gpu.uuid = entry.at("uuid").get<std::string>(),
  gpu.driver = entry.at("driver").get<std::string>();
  const auto now = find_gpu_roofs(file, gpu);
  put_gpu_roofs(file, gpu, now ? best_of(*now, roofs_from(entry)) : roofs_from(entry));
} catch (const std::exception&) {
  // damaged: ignored
}

std::vector<NetworkRoof> find_networks(const Json& file, std::string_view device) {
  std::vector<NetworkRoof> list;
  if (!file.contains("networks")) return list;
  for (const auto& j : file.at("networks")) try {
      NetworkRoof n{j.at("device").get<std::string>(), j.at("ranks").get<int>(), j.at("hosts").get<int>(),
                    rate(j.at("bandwidth")), rate(j.at("latency_seconds"))};
      if (n.device == device && n.ranks > 1) list.push_back(std::move(n));
    } catch (const std::exception&) {
      // damaged: ignored
    }
  return list;
}

void put_network(Json& file, const NetworkRoof& network) {
  NetworkRoof best = network;
  for (const auto& n : find_networks(file, network.device))
    if (n.ranks == best.ranks && n.hosts == best.hosts)
      best.bandwidth = std::max(best.bandwidth, n.bandwidth), best.latency = std::min(best.latency, n.latency);
  put(file, "networks", {{"device", best.device}, {"ranks", best.ranks}, {"hosts", best.hosts}},
      {{"bandwidth", best.bandwidth}, {"latency_seconds", best.latency}});
}

Roofs best_of(const Roofs& a, const Roofs& b) {
  Roofs best = a;
  best.tf32 = std::max(a.tf32, b.tf32);
  best.launch = a.launch > 0 && b.launch > 0 ? std::min(a.launch, b.launch) : std::max(a.launch, b.launch);
  std::vector<double> other;
  each(b, [&](const char*, double value) { other.push_back(value); });
  std::size_t i = 0;
  each(best, [&](const char*, double& value) { value = std::max(value, other[i++]); });
  if (best.caches.size() == b.caches.size())
    for (std::size_t k = 0; k < best.caches.size(); ++k) {
      best.caches[k].read = std::max(best.caches[k].read, b.caches[k].read);
      best.caches[k].copy = std::max(best.caches[k].copy, b.caches[k].copy);
      best.caches[k].update = std::max(best.caches[k].update, b.caches[k].update);
    }
  return best;
}

}  // namespace hpcdl::lab

#include <nlohmann/json.hpp>

#include "hpcdl/machine/remembered.h"
#include "tools/probe/probe.h"

namespace hpcdl::lab {

namespace {

using Json = nlohmann::ordered_json;

Json json(const Figure& f) {
  return f.measured() ? Json{{"median", f.median}, {"min", f.min}, {"max", f.max}, {"rounds", f.rounds}} : Json();
}

Json json(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json json(const Bandwidth& b) {
  return {{"level", b.level},
          {"sweep", sweep_name(b.sweep)},
          {"threads", b.threads},
          {"bytes_per_thread", b.bytes_per_thread},
          {"bytes_per_second", json(b.rate)}};
}

Json json(const LoadLatency& l) { return {{"level", l.level}, {"bytes", l.bytes}, {"seconds", json(l.seconds)}}; }

Json json(const Peak& p) {
  return {{"isa", p.isa}, {"dtype", p.dtype}, {"threads", p.threads}, {"operations_per_second", json(p.rate)}};
}

Json json(const Launch& l) {
  return {{"threads", l.threads}, {"seconds", json(l.awake)}, {"seconds_asleep", json(l.asleep)}};
}

Json json(const FirstTouch& f) {
  return {{"pages", f.pages}, {"threads", f.threads}, {"bytes_per_second", json(f.rate)}};
}

Json json(const CoreToCore& c) { return {{"from", c.from}, {"to", c.to}, {"seconds", json(c.seconds)}}; }

Json json(const Disk& d) {
  return {{"folder", d.folder},
          {"file_system", d.file_system},
          {"bytes", d.bytes},
          {"write", json(d.write)},
          {"read_cold", json(d.read_cold)},
          {"read_warm", json(d.read_warm)},
          {"read_direct", json(d.read_direct)},
          {"note", json(d.note)},
          {"direct_note", json(d.direct_note)}};
}

Json json(const Gpu& g);
Json json(const GpuBandwidth& b);
Json json(const GpuLink& l);

template <class T> Json list(const std::vector<T>& items) {
  Json j = Json::array();
  for (const auto& item : items) j.push_back(json(item));
  return j;
}

Json json(const GpuBandwidth& b) {
  return {{"level", b.level}, {"way", b.way}, {"bytes", b.bytes}, {"bytes_per_second", json(b.rate)}};
}

Json json(const Gpu& g) {
  Json peaks = Json::array();
  for (const auto& p : g.peaks)
    peaks.push_back({{"unit", p.isa}, {"dtype", p.dtype}, {"operations_per_second", json(p.rate)}});
  return {{"index", g.index},
          {"name", g.name},
          {"uuid", g.uuid},
          {"driver", g.driver},
          {"compute_capability", g.compute_capability},
          {"multiprocessors", g.multiprocessors},
          {"clock_hz", g.clock_hz},
          {"memory_clock_hz", g.memory_clock_hz},
          {"memory_bytes", g.memory_bytes},
          {"l2_bytes", g.l2_bytes},
          {"bandwidth", list(g.bandwidth)},
          {"stairs", list(g.stairs)},
          {"peaks", peaks},
          {"host_to_device", json(g.host_to_device)},
          {"device_to_host", json(g.device_to_host)},
          {"launch_seconds", json(g.launch)},
          {"round_trip_seconds", json(g.round_trip)},
          {"replay_node_seconds", json(g.replay_node)}};
}

Json json(const GpuLink& l) {
  return {{"from", l.from},
          {"to", l.to},
          {"kind", l.kind},
          {"bytes_per_second", json(l.rate)},
          {"seconds", json(l.seconds)}};
}

}  // namespace

Json to_json(const Probe& p) {
  Json j{{"machine", identity(p.machine)},
         {"memory_bytes", p.machine.memory_total},
         {"huge_pages", p.machine.huge_pages},
         {"kernel", p.machine.kernel},
         {"date", p.date},
         {"version", p.version},
         {"isa", p.isa},
         {"quick", p.quick},
         {"seconds", p.seconds},
         {"roofs", Json::array()}};
  if (p.quick) j["caveat"] = kQuickCaveat;
  for (const auto& r : p.roofs) put_roofs(j, p.isa, r.threads, r.roofs);
  j["bandwidth"] = list(p.bandwidth);
  j["stairs"] = list(p.stairs);
  j["latency"] = list(p.latency);
  j["peaks"] = list(p.peaks);
  j["launch"] = list(p.launch);
  j["replay_per_record"] = {{"nothing", json(p.replay_empty)}, {"relu_of_16", json(p.replay_small)}};
  j["first_touch"] = list(p.first_touch);
  j["core_to_core"] = list(p.core_to_core);
  j["disk"] = p.disk.folder.empty() ? Json() : json(p.disk);
  j["gpus"] = list(p.gpus);
  j["gpu_note"] = p.gpus.empty() ? Json(p.gpu_note) : Json();
  j["gpu_links"] = list(p.gpu_links);
  for (const auto& g : p.gpus) put_gpu_roofs(j, g, roofs_of(g));
  return j;
}

}  // namespace hpcdl::lab

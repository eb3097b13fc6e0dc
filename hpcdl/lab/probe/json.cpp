#include "hpcdl/lab/probe/probe.h"
#include "hpcdl/lab/remembered.h"

namespace hpcdl::lab {

namespace {

using Json = nlohmann::ordered_json;

Json json(const Figure& f) {
  return f.measured() ? Json{{"median", f.median}, {"min", f.min}, {"max", f.max}, {"rounds", f.rounds}} : Json();
}

Json json(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json json(const Bandwidth& b) {
  return {{"level", b.level}, {"sweep", sweep_name(b.sweep)}, {"threads", b.threads}, {"bytes_per_thread", b.bytes_per_thread}, {"bytes_per_second", json(b.rate)}};
}

Json json(const LoadLatency& l) { return {{"level", l.level}, {"bytes", l.bytes}, {"seconds", json(l.seconds)}}; }

Json json(const Peak& p) { return {{"isa", p.isa}, {"dtype", p.dtype}, {"threads", p.threads}, {"operations_per_second", json(p.rate)}}; }

Json json(const Launch& l) { return {{"threads", l.threads}, {"seconds", json(l.awake)}, {"seconds_asleep", json(l.asleep)}}; }

Json json(const FirstTouch& f) { return {{"pages", f.pages}, {"threads", f.threads}, {"bytes_per_second", json(f.rate)}}; }

Json json(const CoreToCore& c) { return {{"from", c.from}, {"to", c.to}, {"seconds", json(c.seconds)}}; }

Json json(const Disk& d) {
  return {{"folder", d.folder}, {"file_system", d.file_system}, {"bytes", d.bytes}, {"write", json(d.write)}, {"read_cold", json(d.read_cold)},
          {"read_warm", json(d.read_warm)}, {"read_direct", json(d.read_direct)}, {"note", json(d.note)}, {"direct_note", json(d.direct_note)}};
}

Json json(const Gpu& g);
Json json(const GpuLink& l);

template <class T> Json list(const std::vector<T>& items) {
  Json j = Json::array();
  for (const auto& item : items) j.push_back(json(item));
  return j;
}

Json json(const Gpu& g) {
  return {{"index", g.index}, {"name", g.name}, {"driver", g.driver}, {"compute_capability", g.compute_capability}, {"memory_bytes", g.memory_bytes},
          {"l2_bytes", g.l2_bytes}, {"copy", json(g.copy)}, {"l2_read", json(g.l2_read)}, {"shared_read", json(g.shared_read)},
          {"host_to_device", json(g.host_to_device)}, {"device_to_host", json(g.device_to_host)}, {"peaks", list(g.peaks)}};
}

Json json(const GpuLink& l) { return {{"from", l.from}, {"to", l.to}, {"kind", l.kind}, {"bytes_per_second", json(l.rate)}, {"seconds", json(l.seconds)}}; }

}  // namespace

Json to_json(const Probe& p) {
  Json j{{"machine", identity(p.machine)}, {"memory_bytes", p.machine.memory_total}, {"huge_pages", p.machine.huge_pages}, {"kernel", p.machine.kernel},
         {"date", p.date}, {"version", p.version}, {"isa", p.isa}, {"quick", p.quick}, {"seconds", p.seconds}, {"roofs", Json::array()}};
  for (const auto& l : p.launch) put_roofs(j, p.isa, l.threads, roofs_of(p, p.isa, l.threads));
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
  return j;
}

}  // namespace hpcdl::lab

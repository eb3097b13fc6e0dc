#pragma once
// The file in which the lab stores measurements of this machine, probe.json: `hpcdl probe` writes all of it, roofs()
// adds what it had to measure itself.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/machine/roofs.h"

namespace hpcdl::lab {

/// $XDG_CACHE_HOME/hpcdl, or ~/.cache/hpcdl.
std::filesystem::path cache_folder();
/// $XDG_CACHE_HOME/hpcdl/CPU/probe.json, or the same under ~/.cache. A home folder that several kinds of machine share
/// has a folder for each.
std::filesystem::path probe_file();

/// The stored measurements of this machine; an empty object if there are none, or if the file is damaged or belongs to
/// another machine.
nlohmann::ordered_json read_remembered();
/// Written to a temporary file, synced, renamed. Throws Error if that fails.
void write_remembered(const nlohmann::ordered_json& file);

/// All but the networks.
nlohmann::ordered_json to_json(const Roofs& roofs);
/// Throws on what lacks a field, or where a rate is no positive, finite number.
Roofs roofs_from(const nlohmann::ordered_json& j);

/// The roofs in such a file; none if it lacks them or any of their fields.
std::optional<Roofs> find_roofs(const nlohmann::ordered_json& file, const std::string& isa, int threads);
void put_roofs(nlohmann::ordered_json& file, const std::string& isa, int threads, const Roofs& roofs);
/// The same for a GPU, identified by its name, driver and UUID.
struct GpuIdentity {
  std::string name, uuid, driver;
};
std::optional<Roofs> find_gpu_roofs(const nlohmann::ordered_json& file, const GpuIdentity& gpu);
void put_gpu_roofs(nlohmann::ordered_json& file, const GpuIdentity& gpu, const Roofs& roofs);
/// Adopts an entry of another file's "gpu_roofs": its higher values for the same GPU, or all of it for another GPU.
void keep_gpu_roofs(nlohmann::ordered_json& file, const nlohmann::ordered_json& entry);
/// What was measured between ranks on this machine, with tensors on this kind of device.
std::vector<NetworkRoof> find_networks(const nlohmann::ordered_json& file, std::string_view device);
/// Adopts it if it is better than what the file has for the same numbers of ranks and hosts.
void put_network(nlohmann::ordered_json& file, const NetworkRoof& network);
/// The better value of each field.
Roofs best_of(const Roofs& a, const Roofs& b);

}  // namespace hpcdl::lab

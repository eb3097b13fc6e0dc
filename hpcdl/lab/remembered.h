#pragma once
// The one file in which the lab remembers this machine, probe.json: `hpcdl probe` writes all of it, roofs() adds what
// it had to measure itself.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/lab/roofs.h"

namespace hpcdl::lab {

/// $XDG_CACHE_HOME/hpcdl, or ~/.cache/hpcdl.
std::filesystem::path cache_folder();
/// $XDG_CACHE_HOME/hpcdl/CPU/probe.json, or the same under ~/.cache. A home that several kinds of machine share has a
/// folder for each.
std::filesystem::path probe_file();

/// What is remembered of this machine; an empty object when there is nothing, or when it is damaged or another
/// machine's.
nlohmann::ordered_json read_remembered();
/// Written aside, synced, renamed. Throws Error when that fails.
void write_remembered(const nlohmann::ordered_json& file);

/// All but the networks.
nlohmann::ordered_json to_json(const Roofs& roofs);
/// Throws on what lacks a field, or where a rate is no positive, finite number.
Roofs roofs_from(const nlohmann::ordered_json& j);

/// The roofs in such a file; none when it lacks them or any of their fields.
std::optional<Roofs> find_roofs(const nlohmann::ordered_json& file, const std::string& isa, int threads);
void put_roofs(nlohmann::ordered_json& file, const std::string& isa, int threads, const Roofs& roofs);
/// The same of a GPU, known by its name, driver and UUID.
struct Gpu;
std::optional<Roofs> find_gpu_roofs(const nlohmann::ordered_json& file, const Gpu& gpu);
void put_gpu_roofs(nlohmann::ordered_json& file, const Gpu& gpu, const Roofs& roofs);
/// Takes over an entry of another file's "gpu_roofs": what it has of the same GPU and higher, or of another GPU.
void keep_gpu_roofs(nlohmann::ordered_json& file, const nlohmann::ordered_json& entry);
/// What was measured between ranks on this machine, with tensors on such a device.
std::vector<NetworkRoof> find_networks(const nlohmann::ordered_json& file, std::string_view device);
/// Takes it over where it is better than what the file has of as many ranks and hosts.
void put_network(nlohmann::ordered_json& file, const NetworkRoof& network);
/// The better of each.
Roofs best_of(const Roofs& a, const Roofs& b);

}  // namespace hpcdl::lab

//! Devices: request, capabilities, memory accounting, upload, readback, tensor aliases. Names no model.

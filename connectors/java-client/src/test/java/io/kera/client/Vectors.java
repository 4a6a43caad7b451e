package io.kera.client;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;

/** The test vectors of the wire, which the suites of all clients read. */
final class Vectors {
    private Vectors() {}

    static Map<String, byte[]> read() throws IOException {
        Map<String, byte[]> vectors = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(System.getProperty("kera.vectors")))) {
            if (!line.isEmpty() && !line.startsWith("#")) {
                String[] parts = line.split(" = ");
                vectors.put(parts[0], HexFormat.of().parseHex(parts[1]));
            }
        }
        return vectors;
    }
}

package io.kera.samza;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.kera.client.Pinning;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.samza.SamzaException;
import org.apache.samza.config.ConfigException;
import org.apache.samza.config.MapConfig;
import org.junit.jupiter.api.Test;

/** What a job says, and the offsets that it has. */
class SettingsTest {
    private static SystemSettings settings(String... words) {
        Map<String, String> config = new HashMap<>();
        for (int n = 0; n < words.length; n += 2) {
            config.put(words[n].startsWith("stores.") ? words[n] : "systems.kera.kera." + words[n], words[n + 1]);
        }
        return new SystemSettings("kera", new MapConfig(config));
    }

    @Test
    void settingsThatMakeNoSenseAreRefusedByName() {
        String[][] wrong = {
            {"bootstrp", "a:1"}, {"bootstrap", ","}, {"growth", "maybe"}, {"on-data-loss", "no"}, {"read-ahead.bytes", "0"},
            {"read-ahead.bytes", "many"}, {"producer.compression", "rar"}, {"producer.linger.ms", "-1"}, {"producer.deadline.ms", "0"},
            {"tls.certificate", "c.pem"}, {"tls.key", "k.pem"}, {"user", "ann"}, {"password", "x"}, {"token-file", "t", "user", "ann"},
            {"pin", "two words"}, {"pin.policy", "wait"}, {"pin", "p", "pin.policy", "keep"}, {"pin", "p", "pin.max-bytes", "0"},
        };
        for (String[] words : wrong) {
            ConfigException told = assertThrows(ConfigException.class, () -> settings(words), () -> List.of(words).toString());
            assertTrue(told.getMessage().startsWith("systems.kera.kera."), told.getMessage());
        }
        assertThrows(ConfigException.class, () -> settings("producer.linger.ms", "200", "producer.deadline.ms", "100"));
        assertEquals(List.of("a:1", "b:2"), settings("bootstrap", "a:1, b:2").bootstrap());
    }

    @Test
    void eachProcessHasAPinOfItsOwn() {
        SystemSettings pinned = settings("pin", "p", "pin.policy", "wait");
        ConfigException told = assertThrows(ConfigException.class, pinned::pinning);
        assertTrue(told.getMessage().startsWith("systems.kera.kera.pin needs a name for each process"), told.getMessage());
        Map<String, String> config = Map.of("systems.kera.kera.pin", "p", "systems.kera.kera.pin.policy", "wait",
                "systems.kera.kera.pin.max-age.ms", "60000", "systems.kera.kera.pin.required", "true", "processor.id", "7");
        assertEquals(Pinning.named("p-7").waiting().maxAge(Duration.ofMinutes(1)).required(),
                new SystemSettings("kera", new MapConfig(config)).pinning().orElseThrow());
        assertEquals(Optional.empty(), settings().pinning());
    }

    @Test
    void growthIsRefusedWhereThereIsState() {
        assertFalse(settings().isGrowthRefused());
        assertTrue(settings("growth", "refused").isGrowthRefused());
        assertTrue(settings("stores.counts.factory", "F").isGrowthRefused());
        assertFalse(settings("stores.counts.factory", "F", "growth", "later").isGrowthRefused());
    }

    @Test
    void streamsOfStateKeepRecordsAsLongAsTheirStoresSay() {
        SystemSettings stores = settings("stores.a.factory", "F", "stores.a.changelog", "kera.a", "stores.a.changelog.min.compaction.lag.ms",
                "5000", "stores.b.factory", "F", "stores.b.changelog", "kera.b");
        assertEquals(Duration.ofSeconds(5), stores.compactionLag("a"));
        assertEquals(Duration.ofHours(4), stores.compactionLag("b"));
    }

    @Test
    void offsetsAreReadAsTheyAreWritten() {
        String id = "00112233445566778899aabbccddeeff";
        for (String offset : List.of("0", "17", "9223372036854775807", "17@" + id + "/4")) {
            assertEquals(offset, Position.of(offset).toString());
        }
        assertEquals(new Position(17, id, 4), Position.of("17@" + id + "/4"));
        assertEquals("18@" + id + "/4", Position.of("17@" + id + "/4").next().toString());
        for (String wrong : List.of("", "-1", "a", "1@", "1@" + id, "1@" + id + "/", "1@" + id + "/0", "1@abc/4", "1@" + "x".repeat(32) + "/4",
                "@" + id + "/4", "99999999999999999999")) {
            SamzaException told = assertThrows(SamzaException.class, () -> Position.of(wrong), wrong);
            assertTrue(told.getMessage().contains("no offset of a stream of Kera"), told.getMessage());
        }
    }
}

package io.kera.bench;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * Producers of both clients by turns, each in a process of its own, at one broker, then consumers of what they wrote: what a
 * record costs that process, garbage collection included, after a warm-up.
 */
final class Compare {
    private static final List<String> CLIENTS = List.of("kera", "kafka");

    private Compare() {}

    public static void main(String[] words) throws Exception {
        if (words.length != 6) {
            System.err.println("usage: Compare KERA_ADDRESS KAFKA_ADDRESS STREAM WARM_UP RECORDS PAIRS");
            System.exit(2);
        }
        int pairs = Integer.parseInt(words[5]);
        for (String load : List.of("plain", "keyed", "consume")) {
            List<List<Double>> cpu = List.of(new ArrayList<>(), new ArrayList<>());
            List<List<Double>> rate = List.of(new ArrayList<>(), new ArrayList<>());
            List<Double> ratios = new ArrayList<>();
            for (int pair = 0; pair < pairs; pair++) {
                for (int client = 0; client < CLIENTS.size(); client++) {
                    String[] found = run(CLIENTS.get(client), load, words[client], words[2], words[3], words[4]).split(" ");
                    cpu.get(client).add(Double.parseDouble(found[0]));
                    rate.get(client).add(Double.parseDouble(found[1]));
                }
                ratios.add(cpu.get(0).get(pair) / cpu.get(1).get(pair));
            }
            for (int client = 0; client < CLIENTS.size(); client++) {
                System.out.printf(Locale.ROOT, "%s %s: %s ns of CPU a record, %s thousand records/s%n", load, CLIENTS.get(client),
                        told(cpu.get(client), 1, 0), told(rate.get(client), 1e-3, 0));
            }
            System.out.printf(Locale.ROOT, "%s kera / kafka: %s%n", load, told(ratios, 1, 2));
        }
    }

    /** The median, and the least and the most. */
    private static String told(List<Double> figures, double scale, int digits) {
        List<Double> sorted = figures.stream().sorted().toList();
        String form = "%." + digits + "f";
        return String.format(Locale.ROOT, form + " (" + form + "-" + form + ")", sorted.get(sorted.size() / 2) * scale,
                sorted.get(0) * scale, sorted.get(sorted.size() - 1) * scale);
    }

    private static String run(String client, String load, String... words) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(
                System.getProperty("java.home") + "/bin/java", "-Xmx512m", "-cp", System.getProperty("java.class.path"),
                (load.equals("consume") ? Drain.class : Load.class).getName(), client, load));
        command.addAll(List.of(words));
        Process child = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String told = new String(child.getInputStream().readAllBytes(), StandardCharsets.UTF_8).strip();
        if (child.waitFor() != 0) {
            throw new IOException(load + " of " + client + " failed");
        }
        return told;
    }
}
